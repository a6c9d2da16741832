#ifndef COXSWAIN_SCHEDULE_RANK_CLASSES_H_
#define COXSWAIN_SCHEDULE_RANK_CLASSES_H_

#include <string>
#include <vector>

#include "base/mesh.h"

namespace coxswain::schedule {

// Among which ranks a field of their tickets is compared.
enum class Scope {
  kAll,
  kData,  // those of one data index: they compute the same micro-batches
  kPart,  // those of one coordinate along pp and tp: they hold the same part of
          // the model, and exchange its gradients
  kStage,  // those of one coordinate along pp: they have the same layers
};

// The ranks of a job in the classes in which their tickets must be equal. Where
// no part of the model is apart from another, as without a mesh, every rank has
// its own data, and all have the same part.
//
// Immutable, hence thread-safe.
class RankClasses {
 public:
  // `mesh` is empty, or has so many ranks.
  RankClasses(const Mesh& mesh, int world_size);

  int world_size() const { return world_size_; }
  // Returns whether ranks hold different parts of the model.
  bool divided() const { return data_ranks_ < world_size_; }
  // Returns how many data indices there are.
  int data_ranks() const { return data_ranks_; }
  int DataIndexOf(int rank) const { return ClassOf(Scope::kData, rank); }

  // Classes of one scope are numbered from 0, and have equally many ranks.
  int ClassOf(Scope scope, int rank) const;
  int ClassesOf(Scope scope) const { return world_size_ / SizeOf(scope); }
  int SizeOf(Scope scope) const;

  // Returns "the ranks of dp 1", or "all ranks".
  std::string NameOf(Scope scope, int number) const;
  // Returns "rank 5 (pp 1, dp 0)": RankList with the coordinates of a few
  // ranks, where the job is divided.
  std::string List(const std::vector<int>& ranks) const;
  // Returns whether List has the coordinates of so many ranks.
  bool ListsPlaces(const std::vector<int>& ranks) const;

 private:
  Mesh mesh_;
  int world_size_;
  int data_ranks_;
  // By rank; empty where the job is not divided.
  std::vector<int> data_of_;
  std::vector<int> part_of_;
  std::vector<int> stage_of_;
};

}  // namespace coxswain::schedule

#endif  // COXSWAIN_SCHEDULE_RANK_CLASSES_H_
