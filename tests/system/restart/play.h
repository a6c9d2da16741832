#ifndef COXSWAIN_TESTS_SYSTEM_RESTART_PLAY_H_
#define COXSWAIN_TESTS_SYSTEM_RESTART_PLAY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tests/system/restart/dice.h"
#include "tests/system/restart/memory_state.h"
#include "tests/system/restart/wire_server.h"

namespace coxswain {

// How many requests of each rpc a play has sent.
struct Outcomes {
  int accepted = 0;
  int refused = 0;
};
using OutcomesOf = std::map<std::string, Outcomes>;

// Random requests to a coordinator, of every rpc that stores something, then
// another coordinator on the same state. Expects (of GoogleTest) that
//   a refused request changes nothing, neither what is stored nor what is seen;
//   the other coordinator starts, and shows what the first one has shown;
//   repeated requests get their first answers, and the jobs go on.
// A function of its seed.
class Play {
 public:
  Play(uint64_t seed, const std::string& folder);

  void Run();
  const OutcomesOf& outcomes() const { return outcomes_; }

 private:
  // All that is stored or shown, by its name.
  using View = std::map<std::string, std::string>;
  // The job of checkpoints that no job of ours has made.
  static constexpr char kImported[] = "imported";
  View Look(bool stored);
  static void ExpectSame(const View& before, const View& after,
                         const std::string& what);
  void AddJobs(View* view);
  void AddCheckpoints(const std::string& job, View* view);

  // Sends one request.
  absl::Status Do(const std::string& rpc,
                  const std::function<absl::Status()>& send);

  // Joins ranks 0 and 1 of "job", with a manifest that is accepted.
  void JoinTeam();
  // Plays jobs of one worker that end in one way or another.
  void PlayOthers();
  void PlayOne();
  void ChangeStore();
  // Calls for a group or a mesh, by either rank.
  template <typename Request, typename Response>
  void Declare(const std::string& rpc,
               grpc::Status (v1::Group::Stub::*method)(grpc::ClientContext*,
                                                       const Request&,
                                                       Response*),
               Request (*random)(Dice*));
  void MeetAtBarrier();
  void Propose(const std::string& job);
  void Step();
  void SaveCheckpoint();
  void Import();
  void LeaveOne();
  void CheckAfterRestart();
  void CheckPositions();

  // Returns a rank's fence with a request id of its own.
  v1::Fence FenceOf(size_t rank);
  absl::Status JoinWith(WireWorker* worker);
  absl::Status Upload(const v1::Fence& fence, const std::string& checkpoint);

  Dice dice_;
  const std::shared_ptr<MemoryState> state_;
  WireServer server_;
  std::vector<std::unique_ptr<WireWorker>> team_;
  OutcomesOf outcomes_;
  uint64_t requests_ = 0;
  // Calls of rank 0 whose repetition must be answered as the first was.
  std::vector<std::function<void(const v1::Fence& now)>> repeats_;

  v1::Plan plan_;  // in force
  int64_t round_ = 0;
  std::optional<int64_t> next_step_;
  std::map<std::string, v1::Decision> positions_;
};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SYSTEM_RESTART_PLAY_H_
