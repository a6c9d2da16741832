#include "cli/commands.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/certificates.h"
#include "base/host_name.h"
#include "base/status_macros.h"
#include "base/tls_files.h"
#include "base/unique_fd.h"

namespace coxswain {
namespace {

constexpr char kCa[] = "ca";
constexpr char kCoordinator[] = "coordinator";
constexpr char kOperator[] = "operator";
constexpr char kPort[] = "7077";
constexpr mode_t kForOwner = 0600;
constexpr mode_t kForAll = 0644;
constexpr mode_t kFolder = 0700;
// For hosts whose clocks are behind.
constexpr absl::Duration kBefore = absl::Minutes(5);
constexpr absl::Duration kDay = absl::Hours(24);
// The authority outlives the certificates that it signs, so that they can be
// renewed.
constexpr absl::Duration kCaLife = absl::Hours(10 * 365 * 24);

std::string JobFile(const std::string& job) {
  return absl::StrCat("job-", job);
}

// One folder of certificates.
class Folder {
 public:
  Folder(const CertsOptions& options, absl::Time now)
      : options_(options), now_(now) {}

  absl::StatusOr<std::string> Init() {
    COXSWAIN_RETURN_IF_ERROR(MakeFolder());
    // Writes no file if one of them exists.
    std::vector<std::string> names = {kCa, kCoordinator, kOperator};
    for (const std::string& job : options_.jobs) names.push_back(JobFile(job));
    COXSWAIN_RETURN_IF_ERROR(CheckFree(names));
    COXSWAIN_ASSIGN_OR_RETURN(
        const auto ca,
        CertificateAuthority::Create(absl::StrCat("Coxswain of ", HostName()),
                                     {now_ - kBefore, now_ + kCaLife}));
    COXSWAIN_RETURN_IF_ERROR(Write(kCa, ca.pair()));
    COXSWAIN_RETURN_IF_ERROR(Issue(ca, kCoordinator, kCoordinatorUri, Hosts()));
    COXSWAIN_RETURN_IF_ERROR(Issue(ca, kOperator, kOperatorUri, {}));
    COXSWAIN_RETURN_IF_ERROR(IssueJobs(ca));
    return InitText();
  }

  absl::StatusOr<std::string> Add() {
    std::vector<std::string> names;
    for (const std::string& job : options_.jobs) names.push_back(JobFile(job));
    COXSWAIN_RETURN_IF_ERROR(CheckFree(names));
    KeyPair pair;
    COXSWAIN_ASSIGN_OR_RETURN(pair.cert, WatchedFile(Path(kCa, "crt")).Read());
    COXSWAIN_ASSIGN_OR_RETURN(pair.key, WatchedFile(Path(kCa, "key")).Read());
    COXSWAIN_ASSIGN_OR_RETURN(const auto ca,
                              CertificateAuthority::Load(std::move(pair)));
    COXSWAIN_RETURN_IF_ERROR(IssueJobs(ca));
    return absl::StrCat("Wrote ", Files(JobFile(options_.jobs.back())),
                        ". Next:\n", RunCommand());
  }

  absl::StatusOr<std::string> Show() {
    std::error_code error;
    std::vector<std::string> lines;
    for (const auto& entry :
         std::filesystem::directory_iterator(options_.dir, error)) {
      if (entry.path().extension() != ".crt") continue;
      COXSWAIN_ASSIGN_OR_RETURN(const std::string pem,
                                WatchedFile(entry.path().string()).Read());
      COXSWAIN_ASSIGN_OR_RETURN(const auto facts, ReadCertificate(pem));
      lines.push_back(absl::StrCat(
          entry.path().filename().string(), "  ",
          facts.uris.empty() ? "(an authority)"
                             : absl::StrJoin(facts.uris, " "),
          "  ", now_ > facts.not_after ? "EXPIRED " : "until ",
          absl::FormatTime("%Y-%m-%d", facts.not_after, absl::UTCTimeZone())));
    }
    if (error) return Failed(options_.dir, error.value());
    if (lines.empty()) {
      return absl::NotFoundError(
          absl::StrCat("no certificates in ", options_.dir));
    }
    std::sort(lines.begin(), lines.end());
    return absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
  }

 private:
  static absl::Status Failed(const std::string& path, int error) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot use ", path));
  }

  std::string Path(const std::string& name, const std::string& kind) const {
    return absl::StrCat(options_.dir, "/", name, ".", kind);
  }

  // For messages.
  std::string Files(const std::string& name) const {
    return absl::StrCat(Path(name, "crt"), " and ", Path(name, "key"));
  }

  absl::Status MakeFolder() const {
    if (mkdir(options_.dir.c_str(), kFolder) == 0) return absl::OkStatus();
    if (errno != EEXIST) return Failed(options_.dir, errno);
    struct stat status = {};
    if (stat(options_.dir.c_str(), &status) != 0) {
      return Failed(options_.dir, errno);
    }
    if (S_ISDIR(status.st_mode) && status.st_uid == geteuid() &&
        (status.st_mode & (S_IWGRP | S_IWOTH)) == 0) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat(
        options_.dir,
        " is not a folder that only this user may write to, so another user "
        "could put keys there: name a new folder with --dir, or run chmod go-w "
        "on this one"));
  }

  absl::Status CheckFree(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      for (const char* const kind : {"crt", "key"}) {
        struct stat status = {};
        if (lstat(Path(name, kind).c_str(), &status) != 0) continue;
        return absl::AlreadyExistsError(absl::StrCat(
            Path(name, kind),
            " already exists, and nothing was written: move it away, or name "
            "another folder with --dir"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status WriteNew(const std::string& path, const std::string& text,
                        mode_t mode) const {
    const UniqueFd fd(
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (!fd.valid()) return Failed(path, errno);
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t size =
          write(fd.get(), text.data() + done, text.size() - done);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) return Failed(path, errno);
      done += size;
    }
    return absl::OkStatus();
  }

  absl::Status Write(const std::string& name, const KeyPair& pair) const {
    COXSWAIN_RETURN_IF_ERROR(WriteNew(Path(name, "key"), pair.key, kForOwner));
    return WriteNew(Path(name, "crt"), pair.cert, kForAll);
  }

  absl::Status Issue(const CertificateAuthority& ca, const std::string& name,
                     const std::string& uri,
                     const std::vector<std::string>& hosts) const {
    CertificateRequest request;
    request.common_name = name;
    request.uri = uri;
    request.hosts = hosts;
    request.validity = {now_ - kBefore, now_ + options_.days * kDay};
    COXSWAIN_ASSIGN_OR_RETURN(const KeyPair pair, ca.Issue(request));
    return Write(name, pair);
  }

  absl::Status IssueJobs(const CertificateAuthority& ca) const {
    for (const std::string& job : options_.jobs) {
      COXSWAIN_RETURN_IF_ERROR(
          Issue(ca, JobFile(job), absl::StrCat(kJobUriPrefix, job), {}));
    }
    return absl::OkStatus();
  }

  std::vector<std::string> Hosts() const {
    std::vector<std::string> hosts = options_.hosts;
    for (const std::string& own :
         {HostName(), std::string("localhost"), std::string("127.0.0.1"),
          std::string("::1")}) {
      if (std::find(hosts.begin(), hosts.end(), own) == hosts.end()) {
        hosts.push_back(own);
      }
    }
    return hosts;
  }

  std::string Flags(const std::string& name) const {
    return absl::StrCat("--tls-cert ", Path(name, "crt"), " --tls-key ",
                        Path(name, "key"), " --tls-ca ", Path(kCa, "crt"));
  }

  std::string RunCommand() const {
    const std::string address = absl::StrCat(Hosts().front(), ":", kPort);
    if (options_.jobs.empty()) {
      return absl::StrCat("  coxswain status --coordinator ", address,
                          " \\\n      ", Flags(kOperator), "\n");
    }
    const std::string& job = options_.jobs.back();
    return absl::StrCat("  coxswain run --coordinator ", address, " --job ",
                        job, " \\\n      ", Flags(JobFile(job)),
                        " -- PROGRAM\n");
  }

  std::string InitText() const {
    std::string text = absl::StrCat(
        "Wrote a certificate authority and certificates to ", options_.dir,
        ".\n", Path(kCa, "key"),
        " signs further certificates: keep it on this host.\n"
        "A host of workers needs ca.crt and the two files of its job.\n"
        "The coordinator's certificate is for ",
        absl::StrJoin(Hosts(), ", "), ".\nNext:\n  coxswain serve --listen ",
        "0.0.0.0:", kPort, " \\\n      ", Flags(kCoordinator), "\n",
        RunCommand());
    if (options_.jobs.empty()) {
      absl::StrAppend(&text,
                      "To make a certificate for a job:\n  coxswain certs "
                      "add --dir ",
                      options_.dir, " --job NAME\n");
    }
    return text;
  }

  const CertsOptions options_;
  const absl::Time now_;
};

}  // namespace

absl::StatusOr<std::string> RunCerts(const CertsOptions& options,
                                     absl::Time now) {
  Folder folder(options, now);
  switch (options.action) {
    case CertsOptions::Action::kInit:
      return folder.Init();
    case CertsOptions::Action::kAdd:
      return folder.Add();
    case CertsOptions::Action::kShow:
      return folder.Show();
  }
  return absl::InternalError("no such action");
}

}  // namespace coxswain
