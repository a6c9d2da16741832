#include "server/storage/fenced_file_system.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace coxswain::server {

template <typename Change>
absl::Status FencedFileSystem::Make(Change change) const {
  COXSWAIN_RETURN_IF_ERROR(may_change_());
  const absl::Status status = change();
  if (status.ok()) return status;
  const absl::Status may_change = may_change_();
  if (may_change.ok()) return status;
  return absl::Status(
      may_change.code(),
      absl::StrCat(may_change.message(), " (", status.message(), ")"));
}

class FencedWritableFile : public WritableFile {
 public:
  FencedWritableFile(const FencedFileSystem* fence,
                     std::unique_ptr<WritableFile> base)
      : fence_(fence), base_(std::move(base)) {}

  absl::Status Append(absl::string_view data) override {
    return fence_->Make([&] { return base_->Append(data); });
  }
  absl::Status AppendAll(absl::Span<const absl::string_view> pieces) override {
    return fence_->Make([&] { return base_->AppendAll(pieces); });
  }
  absl::Status Sync() override {
    return fence_->Make([&] { return base_->Sync(); });
  }
  absl::Status Close() override { return base_->Close(); }

 private:
  const FencedFileSystem* const fence_;
  const std::unique_ptr<WritableFile> base_;
};

absl::StatusOr<std::unique_ptr<WritableFile>> FencedFileSystem::Create(
    const std::string& path) {
  std::unique_ptr<WritableFile> file;
  COXSWAIN_RETURN_IF_ERROR(Make([&]() -> absl::Status {
    COXSWAIN_ASSIGN_OR_RETURN(file, base_->Create(path));
    return absl::OkStatus();
  }));
  return std::make_unique<FencedWritableFile>(this, std::move(file));
}

absl::Status FencedFileSystem::MakeFolder(const std::string& path) {
  return Make([&] { return base_->MakeFolder(path); });
}

absl::Status FencedFileSystem::SyncFolder(const std::string& path) {
  return Make([&] { return base_->SyncFolder(path); });
}

absl::Status FencedFileSystem::Rename(const std::string& from,
                                      const std::string& to) {
  return Make([&] { return base_->Rename(from, to); });
}

absl::Status FencedFileSystem::RemoveTree(const std::string& path) {
  return Make([&] { return base_->RemoveTree(path); });
}

}  // namespace coxswain::server
