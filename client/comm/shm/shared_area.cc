#include "client/comm/shm/shared_area.h"

#include "absl/strings/str_cat.h"

namespace coxswain {
namespace {

// A peer wrote it: it may be none.
std::string TypeOf(DType dtype) {
  for (const DType known :
       {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
        DType::kInt8, DType::kInt32, DType::kInt64, DType::kUInt8}) {
    if (dtype == known) return std::string(coxswain::NameOf(dtype));
  }
  return absl::StrCat("type ", static_cast<int>(dtype));
}

const char* NameOf(Collective kind) {
  switch (kind) {
    case Collective::kBarrier:
      return "barrier";
    case Collective::kAllReduce:
      return "all-reduce";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllGather:
      return "all-gather";
    case Collective::kReduceScatter:
      return "reduce-scatter";
    case Collective::kAllToAll:
      return "all-to-all";
  }
  return "collective that does not exist";
}

}  // namespace

bool SamePost(const Post& a, const Post& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op &&
         a.root == b.root && a.count == b.count;
}

std::string Describe(const Post& post) {
  if (post.kind == Collective::kBarrier) return NameOf(post.kind);
  const std::string what = absl::StrCat(NameOf(post.kind), " of ", post.count,
                                        " x ", TypeOf(post.dtype));
  if (post.kind != Collective::kBroadcast) return what;
  return absl::StrCat(what, " from rank ", post.root);
}

}  // namespace coxswain
