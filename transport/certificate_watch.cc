#include "transport/certificate_watch.h"

#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/certificates.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

// How often gRPC looks whether a copy has changed: its shortest period.
constexpr unsigned int kLookSeconds = 1;

using Names = std::tuple<std::string, std::string, std::string>;

struct Registry {
  Mutex mutex;
  std::map<Names, std::weak_ptr<const CertificateWatch>> watches
      ABSL_GUARDED_BY(mutex);
};
Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

// The file that the log names, with when what is in it expires.
void LogTaken(const TlsFiles& files, const TlsTexts& texts) {
  const bool ours = !files.cert.empty();
  const auto facts = ReadCertificate(ours ? texts.cert : texts.ca);
  if (!facts.ok()) return;  // Cannot be: it has been checked.
  LogInfo(
      "certificates_renewed",
      {{"file", ours ? files.cert : files.ca},
       {"name", facts->common_name},
       {"expires", absl::FormatTime(facts->not_after, absl::UTCTimeZone())}});
}

}  // namespace

CertificateIntake::CertificateIntake(TlsFiles files, const Clock* clock)
    : files_(std::move(files)), clock_(clock) {
  for (const std::string& path : {files_.cert, files_.key, files_.ca}) {
    if (!path.empty()) watched_.emplace_back(path);
  }
  NoteChanges();
  Take(ReadTlsFiles(files_, clock_->WallTime()));
}

bool CertificateIntake::NoteChanges() {
  bool changed = false;
  for (WatchedFile& file : watched_) {
    if (!file.Changed()) continue;
    file.Note();
    changed = true;
  }
  if (!changed) return false;
  pending_ = true;
  if (taken_) refused_ = absl::OkStatus();
  return true;
}

void CertificateIntake::Look() {
  if (NoteChanges() || !pending_) return;
  const auto texts = ReadTlsFiles(files_, clock_->WallTime());
  if (NoteChanges()) return;  // What was read may be of two minds.
  Take(texts);
}

void CertificateIntake::Take(const absl::StatusOr<TlsTexts>& texts) {
  absl::Status status = texts.status();
  if (texts.ok() && taken_ && !files_.cert.empty()) {
    status = CheckChainIsNotCut(texts->cert, taken_->cert);
    if (!status.ok()) {
      status = absl::InvalidArgumentError(
          absl::StrCat(files_.cert, ": ", status.message()));
    }
  }
  if (status.ok()) status = HandOver(*texts);
  if (!status.ok()) {
    if (status == refused_) return;
    refused_ = status;
    LogError("certificates_not_taken",
             {{"error", status.message()},
              {"next", taken_ ? "those of before stay in use: put good files "
                                "there, which are taken within seconds"
                              : "there is no connection without: put good "
                                "files there"}});
    return;
  }
  pending_ = false;
  if (taken_ && !(*taken_ == *texts)) LogTaken(files_, *texts);
  taken_ = *texts;
}

absl::Status CertificateIntake::HandOver(const TlsTexts& texts) {
  // One file for both: nothing reads a key and another one's certificate.
  if (!texts.cert.empty() &&
      !(taken_ && taken_->key == texts.key && taken_->cert == texts.cert)) {
    COXSWAIN_RETURN_IF_ERROR(
        identity_.Set(absl::StrCat(texts.key, "\n", texts.cert)));
  }
  if (!texts.ca.empty() && !(taken_ && taken_->ca == texts.ca)) {
    COXSWAIN_RETURN_IF_ERROR(ca_.Set(texts.ca));
  }
  return absl::OkStatus();
}

std::string CertificateIntake::identity_path() const {
  return files_.cert.empty() ? "" : identity_.path();
}

std::string CertificateIntake::ca_path() const {
  return files_.ca.empty() ? "" : ca_.path();
}

std::shared_ptr<const CertificateWatch> CertificateWatch::Of(
    const TlsFiles& files) {
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mutex);
  for (auto it = registry.watches.begin(); it != registry.watches.end();) {
    it = it->second.expired() ? registry.watches.erase(it) : std::next(it);
  }
  auto& known = registry.watches[{files.cert, files.key, files.ca}];
  if (const auto shared = known.lock()) return shared;
  const std::shared_ptr<const CertificateWatch> watch(
      new CertificateWatch(files));
  if (watch->valid()) known = watch;  // Else the next one may have more luck.
  return watch;
}

// By the clock that gRPC checks certificates with.
CertificateWatch::CertificateWatch(const TlsFiles& files)
    : intake_(files, Clock::Real()) {
  const std::string identity = intake_.identity_path();
  provider_ = std::make_shared<FileWatcherCertificateProvider>(
      identity, identity, intake_.ca_path(), kLookSeconds);
  thread_ = std::thread([this] { Run(); });
}

CertificateWatch::~CertificateWatch() {
  stop_.Raise(absl::CancelledError("no more certificates are needed"));
  thread_.join();
}

void CertificateWatch::Run() {
  while (!stop_.WaitFor(kPeriod)) {
    MutexLock lock(&mutex_);
    intake_.Look();
  }
}

bool CertificateWatch::valid() const {
  MutexLock lock(&mutex_);
  return intake_.valid();
}

absl::Status CertificateWatch::status() const {
  MutexLock lock(&mutex_);
  return intake_.status();
}

}  // namespace coxswain
