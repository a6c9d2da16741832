#include "server/storage/fault_file_system.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::server {

class FaultWritableFile : public WritableFile {
 public:
  FaultWritableFile(FaultFileSystem* faults, std::string path,
                    std::unique_ptr<WritableFile> base)
      : faults_(faults), path_(std::move(path)), base_(std::move(base)) {}

  absl::Status Append(absl::string_view data) override {
    COXSWAIN_RETURN_IF_ERROR(faults_->BeforeMutation(path_));
    return base_->Append(data);
  }
  absl::Status Sync() override {
    COXSWAIN_RETURN_IF_ERROR(faults_->BeforeMutation(path_));
    return base_->Sync();
  }
  absl::Status Close() override {
    COXSWAIN_RETURN_IF_ERROR(faults_->BeforeRead());
    return base_->Close();
  }

 private:
  FaultFileSystem* const faults_;
  const std::string path_;
  const std::unique_ptr<WritableFile> base_;
};

absl::Status FaultFileSystem::BeforeRead() const {
  MutexLock lock(&mutex_);
  if (crash_at_ >= 0 && mutations_ >= crash_at_) {
    return absl::UnavailableError("the machine is down");
  }
  return absl::OkStatus();
}

absl::Status FaultFileSystem::BeforeMutation(const std::string& path) {
  COXSWAIN_RETURN_IF_ERROR(BeforeRead());
  std::function<void()> hook;
  {
    MutexLock lock(&mutex_);
    if (hook_ != nullptr && mutations_ >= hook_at_) {
      hook = std::exchange(hook_, nullptr);
    }
  }
  if (hook != nullptr) hook();
  MutexLock lock(&mutex_);
  if (!fail_status_.ok() && path.find(fail_part_) != std::string::npos) {
    return std::exchange(fail_status_, absl::OkStatus());
  }
  ++mutations_;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WritableFile>> FaultFileSystem::Create(
    const std::string& path) {
  COXSWAIN_RETURN_IF_ERROR(BeforeMutation(path));
  COXSWAIN_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file,
                            base_->Create(path));
  return std::make_unique<FaultWritableFile>(this, path, std::move(file));
}

absl::StatusOr<std::unique_ptr<ReadableFile>> FaultFileSystem::Open(
    const std::string& path) const {
  COXSWAIN_RETURN_IF_ERROR(BeforeRead());
  return base_->Open(path);
}

absl::StatusOr<std::vector<std::string>> FaultFileSystem::List(
    const std::string& path) const {
  COXSWAIN_RETURN_IF_ERROR(BeforeRead());
  return base_->List(path);
}

absl::Status FaultFileSystem::MakeFolder(const std::string& path) {
  COXSWAIN_RETURN_IF_ERROR(BeforeMutation(path));
  return base_->MakeFolder(path);
}

absl::Status FaultFileSystem::SyncFolder(const std::string& path) {
  COXSWAIN_RETURN_IF_ERROR(BeforeMutation(path));
  {
    MutexLock lock(&mutex_);
    if (!fail_sync_status_.ok() && path == fail_sync_path_) {
      return std::exchange(fail_sync_status_, absl::OkStatus());
    }
  }
  return base_->SyncFolder(path);
}

absl::Status FaultFileSystem::Rename(const std::string& from,
                                     const std::string& to) {
  COXSWAIN_RETURN_IF_ERROR(BeforeMutation(to));
  return base_->Rename(from, to);
}

// Name by name, as a real one: a crash, or another process, may find it half
// done.
absl::Status FaultFileSystem::RemoveTree(const std::string& path) {
  const auto names = base_->List(path);
  if (names.ok()) {
    for (const std::string& name : *names) {
      COXSWAIN_RETURN_IF_ERROR(RemoveTree(absl::StrCat(path, "/", name)));
    }
  }
  COXSWAIN_RETURN_IF_ERROR(BeforeMutation(path));
  const auto added = base_->List(path);
  if (added.ok() && !added->empty()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not empty"));
  }
  return base_->RemoveTree(path);
}

void FaultFileSystem::CrashAfter(int64_t count) {
  MutexLock lock(&mutex_);
  crash_at_ = mutations_ + count;
}

void FaultFileSystem::Before(int64_t count, std::function<void()> hook) {
  MutexLock lock(&mutex_);
  hook_at_ = mutations_ + count;
  hook_ = std::move(hook);
}

void FaultFileSystem::FailNext(const std::string& part, absl::Status status) {
  MutexLock lock(&mutex_);
  fail_part_ = part;
  fail_status_ = std::move(status);
}

void FaultFileSystem::FailNextSync(const std::string& path,
                                   absl::Status status) {
  MutexLock lock(&mutex_);
  fail_sync_path_ = path;
  fail_sync_status_ = std::move(status);
}

void FaultFileSystem::Restart(UnsyncedData unsynced) {
  {
    MutexLock lock(&mutex_);
    crash_at_ = -1;
    fail_status_ = absl::OkStatus();
    fail_sync_status_ = absl::OkStatus();
    hook_ = nullptr;
  }
  base_->Crash(unsynced);
}

int64_t FaultFileSystem::mutations() const {
  MutexLock lock(&mutex_);
  return mutations_;
}

}  // namespace coxswain::server
