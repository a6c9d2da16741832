#include "client/session/peer_reports.h"

#include <utility>

namespace coxswain {

PeerReports::PeerReports(int rank, int world_size, Sender sender)
    : rank_(rank), world_size_(world_size), sender_(std::move(sender)) {}

void PeerReports::Report(const std::vector<int>& ranks) {
  MutexLock lock(&send_mutex_);
  for (const int rank : ranks) {
    if (rank < 0 || rank >= world_size_ || rank == rank_) continue;
    if (broken_.insert(rank).second) unsaid_.insert(rank);
  }
  SendUnsaidLocked();
}

void PeerReports::SendUnsaid() {
  MutexLock lock(&send_mutex_);
  SendUnsaidLocked();
}

void PeerReports::SendUnsaidLocked() {
  if (unsaid_.empty() || sender_ == nullptr) return;
  v1::AttachRequest request;
  request.mutable_peers_broken()->mutable_ranks()->Assign(unsaid_.begin(),
                                                          unsaid_.end());
  if (sender_(request)) unsaid_.clear();
}

void PeerReports::Stop() {
  MutexLock lock(&send_mutex_);
  sender_ = nullptr;
}

}  // namespace coxswain
