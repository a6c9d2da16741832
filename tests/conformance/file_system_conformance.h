#ifndef COXSWAIN_TESTS_CONFORMANCE_FILE_SYSTEM_CONFORMANCE_H_
#define COXSWAIN_TESTS_CONFORMANCE_FILE_SYSTEM_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "server/storage/file_system.h"

namespace coxswain::server {

// What every FileSystem must do. A file system's test instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, FileSystemConformance,
//                            testing::Values(FileSystemCase{...}));
struct FileSystemCase {
  std::string name;
  std::function<std::unique_ptr<FileSystem>()> make;  // or null: `shared`
  FileSystem* shared = nullptr;
  std::function<std::string()> make_folder;  // an empty one; "" is the root
};
inline void PrintTo(const FileSystemCase& the_case, std::ostream* os) {
  *os << the_case.name;
}

class FileSystemConformance : public testing::TestWithParam<FileSystemCase> {
 protected:
  FileSystemConformance()
      : owned_(GetParam().make ? GetParam().make() : nullptr),
        files_(owned_ != nullptr ? owned_.get() : GetParam().shared),
        folder_(GetParam().make_folder()) {}
  ~FileSystemConformance() override {
    if (!folder_.empty()) {
      EXPECT_OK(files_->RemoveTree(folder_));
    }
  }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }
  absl::Status Write(const std::string& name, const std::string& data) {
    absl::StatusOr<std::unique_ptr<WritableFile>> file =
        files_->Create(Path(name));
    if (!file.ok()) return file.status();
    absl::Status status = (*file)->Append(data);
    status.Update((*file)->Sync());
    status.Update((*file)->Close());
    return status;
  }
  absl::StatusOr<std::string> Read(const std::string& name) {
    absl::StatusOr<std::unique_ptr<ReadableFile>> file =
        files_->Open(Path(name));
    if (!file.ok()) return file.status();
    absl::StatusOr<int64_t> size = (*file)->Size();
    if (!size.ok()) return size.status();
    return (*file)->Read(0, *size);
  }

  const std::unique_ptr<FileSystem> owned_;
  FileSystem* const files_;
  const std::string folder_;
};

TEST_P(FileSystemConformance, ReadsBackWhatWasAppended) {
  ASSERT_OK_AND_ASSIGN(const auto file, files_->Create(Path("file")));
  const std::string bytes("a\0b\xff", 4);
  ASSERT_OK(file->Append(bytes));
  ASSERT_OK(file->Append(""));
  ASSERT_OK(file->Append("rest"));
  ASSERT_OK(file->Sync());
  ASSERT_OK(file->Close());
  EXPECT_EQ(Read("file").value_or("unreadable"), bytes + "rest");
}

TEST_P(FileSystemConformance, ReadIsShortOnlyAtTheEnd) {
  ASSERT_OK(Write("file", "0123456789"));
  ASSERT_OK_AND_ASSIGN(const auto file, files_->Open(Path("file")));
  EXPECT_EQ(file->Read(2, 3).value_or("unreadable"), "234");
  EXPECT_EQ(file->Read(8, 5).value_or("unreadable"), "89");
  EXPECT_EQ(file->Read(10, 5).value_or("unreadable"), "");
  EXPECT_EQ(file->Read(99, 5).value_or("unreadable"), "");
  EXPECT_EQ(file->Size().value_or(-1), 10);
}

TEST_P(FileSystemConformance, CreateEmptiesAnExistingFile) {
  ASSERT_OK(Write("file", "long content"));
  ASSERT_OK(Write("file", "new"));
  EXPECT_EQ(Read("file").value_or("unreadable"), "new");
}

TEST_P(FileSystemConformance, MissingPathsAreNotFoundAndNamed) {
  using testing::HasSubstr;
  const auto not_found =
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("nowhere"));
  EXPECT_THAT(files_->Open(Path("nowhere")), not_found);
  EXPECT_THAT(files_->List(Path("nowhere")), not_found);
  EXPECT_THAT(files_->Create(Path("nowhere/file")), not_found);
  EXPECT_THAT(files_->MakeFolder(Path("nowhere/folder")), not_found);
  EXPECT_THAT(files_->SyncFolder(Path("nowhere")), not_found);
  EXPECT_THAT(files_->Rename(Path("nowhere"), Path("nowhere2")), not_found);
}

TEST_P(FileSystemConformance, FilesAndFoldersAreNotMixedUp) {
  ASSERT_OK(Write("file", "x"));
  ASSERT_OK(files_->MakeFolder(Path("folder")));
  const auto refused =
      StatusIs(absl::StatusCode::kFailedPrecondition, testing::_);
  EXPECT_THAT(files_->Open(Path("folder")), refused);
  EXPECT_THAT(files_->Create(Path("folder")), refused);
  EXPECT_THAT(files_->List(Path("file")), refused);
  EXPECT_THAT(files_->Create(Path("file/inside")), refused);
  EXPECT_THAT(files_->MakeFolder(Path("file")),
              StatusIs(absl::StatusCode::kAlreadyExists, testing::_));
}

TEST_P(FileSystemConformance, ListsNamesInOrder) {
  ASSERT_OK(Write("b", ""));
  ASSERT_OK(files_->MakeFolder(Path("c")));
  ASSERT_OK(Write("a", ""));
  ASSERT_OK(Write("c/inside", ""));
  ASSERT_OK_AND_ASSIGN(const auto names, files_->List(folder_));
  EXPECT_THAT(names, testing::ElementsAre("a", "b", "c"));
}

TEST_P(FileSystemConformance, MakeFolderMayBeRepeated) {
  ASSERT_OK(files_->MakeFolder(Path("folder")));
  ASSERT_OK(Write("folder/file", "x"));
  ASSERT_OK(files_->MakeFolder(Path("folder")));
  ASSERT_OK(files_->SyncFolder(Path("folder")));
  EXPECT_EQ(Read("folder/file").value_or("unreadable"), "x");
}

TEST_P(FileSystemConformance, RenameMovesAFolderWithItsContent) {
  ASSERT_OK(files_->MakeFolder(Path("from")));
  ASSERT_OK(Write("from/file", "x"));
  ASSERT_OK(files_->Rename(Path("from"), Path("to")));
  EXPECT_EQ(Read("to/file").value_or("unreadable"), "x");
  EXPECT_FALSE(Read("from/file").ok());
}

TEST_P(FileSystemConformance, RenameReplacesAFileButNoFullFolder) {
  ASSERT_OK(Write("a", "new"));
  ASSERT_OK(Write("b", "old"));
  ASSERT_OK(files_->Rename(Path("a"), Path("b")));
  EXPECT_EQ(Read("b").value_or("unreadable"), "new");
  ASSERT_OK(files_->MakeFolder(Path("one")));
  ASSERT_OK(files_->MakeFolder(Path("two")));
  ASSERT_OK(Write("two/file", "kept"));
  EXPECT_FALSE(files_->Rename(Path("one"), Path("two")).ok());
  EXPECT_EQ(Read("two/file").value_or("unreadable"), "kept");
}

TEST_P(FileSystemConformance, RemoveTreeRemovesAllAndMayBeRepeated) {
  ASSERT_OK(files_->MakeFolder(Path("folder")));
  ASSERT_OK(files_->MakeFolder(Path("folder/inner")));
  ASSERT_OK(Write("folder/inner/file", "x"));
  ASSERT_OK(Write("kept", "y"));
  ASSERT_OK(files_->RemoveTree(Path("folder")));
  ASSERT_OK(files_->RemoveTree(Path("folder")));
  ASSERT_OK(files_->RemoveTree(Path("folder/inner/file")));
  ASSERT_OK_AND_ASSIGN(const auto names, files_->List(folder_));
  EXPECT_THAT(names, testing::ElementsAre("kept"));
}

TEST_P(FileSystemConformance, AnOpenFileOutlivesItsName) {
  ASSERT_OK(Write("file", "still here"));
  ASSERT_OK_AND_ASSIGN(const auto file, files_->Open(Path("file")));
  ASSERT_OK(files_->RemoveTree(Path("file")));
  EXPECT_EQ(file->Read(0, 100).value_or("unreadable"), "still here");
}

}  // namespace coxswain::server

#endif  // COXSWAIN_TESTS_CONFORMANCE_FILE_SYSTEM_CONFORMANCE_H_
