#include "server/storage/memory_file_system.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace coxswain::server {

struct MemoryFileSystem::Node {
  bool folder = false;
  // A file's bytes, and those that survive a crash.
  std::string data;
  std::string synced_data;
  // A folder's names, and those that survive a crash.
  Entries entries;
  Entries synced_entries;
};

class MemoryWritableFile : public WritableFile {
 public:
  MemoryWritableFile(Mutex* mutex, MemoryFileSystem::NodePtr node)
      : mutex_(mutex), node_(std::move(node)) {}

  absl::Status Append(absl::string_view data) override {
    MutexLock lock(mutex_);
    node_->data.append(data.data(), data.size());
    return absl::OkStatus();
  }
  absl::Status Sync() override {
    MutexLock lock(mutex_);
    node_->synced_data = node_->data;
    return absl::OkStatus();
  }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  Mutex* const mutex_;
  const MemoryFileSystem::NodePtr node_;
};

class MemoryReadableFile : public ReadableFile {
 public:
  MemoryReadableFile(Mutex* mutex, MemoryFileSystem::NodePtr node)
      : mutex_(mutex), node_(std::move(node)) {}

  absl::StatusOr<std::string> Read(int64_t offset,
                                   size_t count) const override {
    MutexLock lock(mutex_);
    if (offset >= static_cast<int64_t>(node_->data.size())) return "";
    return node_->data.substr(offset, count);
  }
  absl::StatusOr<int64_t> Size() const override {
    MutexLock lock(mutex_);
    return static_cast<int64_t>(node_->data.size());
  }

 private:
  Mutex* const mutex_;
  const MemoryFileSystem::NodePtr node_;
};

MemoryFileSystem::MemoryFileSystem() : root_(std::make_shared<Node>()) {
  root_->folder = true;
}

absl::StatusOr<MemoryFileSystem::NodePtr> MemoryFileSystem::FindLocked(
    const std::string& path) const {
  NodePtr node = root_;
  for (absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
    if (!node->folder) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " leads through a file"));
    }
    const auto it = node->entries.find(std::string(name));
    if (it == node->entries.end()) {
      return absl::NotFoundError(absl::StrCat("no such path: ", path));
    }
    node = it->second;
  }
  return node;
}

absl::StatusOr<MemoryFileSystem::NodePtr> MemoryFileSystem::FindParentLocked(
    const std::string& path, std::string* name) const {
  const size_t slash = path.rfind('/');
  *name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name->empty()) {
    return absl::InvalidArgumentError(absl::StrCat("not a name: ", path));
  }
  COXSWAIN_ASSIGN_OR_RETURN(
      NodePtr parent,
      FindLocked(slash == std::string::npos ? "" : path.substr(0, slash)));
  if (!parent->folder) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " leads through a file"));
  }
  return parent;
}

absl::StatusOr<std::unique_ptr<WritableFile>> MemoryFileSystem::Create(
    const std::string& path) {
  MutexLock lock(&mutex_);
  std::string name;
  COXSWAIN_ASSIGN_OR_RETURN(const NodePtr parent,
                            FindParentLocked(path, &name));
  NodePtr& node = parent->entries[name];
  if (node == nullptr) node = std::make_shared<Node>();
  if (node->folder) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a folder"));
  }
  node->data.clear();
  return std::make_unique<MemoryWritableFile>(&mutex_, node);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> MemoryFileSystem::Open(
    const std::string& path) const {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const NodePtr node, FindLocked(path));
  if (node->folder) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a folder"));
  }
  return std::make_unique<MemoryReadableFile>(&mutex_, node);
}

absl::StatusOr<std::vector<std::string>> MemoryFileSystem::List(
    const std::string& path) const {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const NodePtr node, FindLocked(path));
  if (!node->folder) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a file"));
  }
  std::vector<std::string> names;
  for (const auto& [name, entry] : node->entries) names.push_back(name);
  return names;
}

absl::Status MemoryFileSystem::MakeFolder(const std::string& path) {
  MutexLock lock(&mutex_);
  std::string name;
  COXSWAIN_ASSIGN_OR_RETURN(const NodePtr parent,
                            FindParentLocked(path, &name));
  NodePtr& node = parent->entries[name];
  if (node != nullptr && !node->folder) {
    return absl::AlreadyExistsError(absl::StrCat(path, " is a file"));
  }
  if (node == nullptr) node = std::make_shared<Node>();
  node->folder = true;
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::SyncFolder(const std::string& path) {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const NodePtr node, FindLocked(path));
  if (!node->folder) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a file"));
  }
  node->synced_entries = node->entries;
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::Rename(const std::string& from,
                                      const std::string& to) {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const NodePtr node, FindLocked(from));
  std::string from_name;
  std::string to_name;
  COXSWAIN_ASSIGN_OR_RETURN(const NodePtr from_parent,
                            FindParentLocked(from, &from_name));
  COXSWAIN_ASSIGN_OR_RETURN(const NodePtr to_parent,
                            FindParentLocked(to, &to_name));
  const auto target = to_parent->entries.find(to_name);
  if (target != to_parent->entries.end()) {
    if (target->second->folder != node->folder) {
      return absl::FailedPreconditionError(absl::StrCat(
          "of ", from, " and ", to, " one is a file and one is a folder"));
    }
    if (!target->second->entries.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(to, " is not empty"));
    }
  }
  from_parent->entries.erase(from_name);
  to_parent->entries[to_name] = node;
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::RemoveTree(const std::string& path) {
  MutexLock lock(&mutex_);
  std::string name;
  const absl::StatusOr<NodePtr> parent = FindParentLocked(path, &name);
  if (absl::IsNotFound(parent.status())) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(parent.status());
  (*parent)->entries.erase(name);
  return absl::OkStatus();
}

void MemoryFileSystem::CrashNode(Node* node, UnsyncedData unsynced) {
  switch (unsynced) {
    case UnsyncedData::kLost:
      node->data = node->synced_data;
      node->entries = node->synced_entries;
      break;
    case UnsyncedData::kKept:
      break;
    case UnsyncedData::kTorn: {
      const size_t synced = node->synced_data.size();
      if (node->data.size() > synced) {
        node->data.resize(synced + (node->data.size() - synced) / 2);
      }
      break;
    }
  }
  node->synced_data = node->data;
  node->synced_entries = node->entries;
  for (auto& [name, child] : node->entries) CrashNode(child.get(), unsynced);
}

void MemoryFileSystem::Crash(UnsyncedData unsynced) {
  MutexLock lock(&mutex_);
  CrashNode(root_.get(), unsynced);
}

absl::Status MemoryFileSystem::FlipBit(const std::string& path, int64_t byte) {
  MutexLock lock(&mutex_);
  COXSWAIN_ASSIGN_OR_RETURN(const NodePtr node, FindLocked(path));
  if (byte < 0 || byte >= static_cast<int64_t>(node->data.size())) {
    return absl::OutOfRangeError(absl::StrCat(path, " has no byte ", byte));
  }
  node->data[byte] ^= 1;
  return absl::OkStatus();
}

}  // namespace coxswain::server
