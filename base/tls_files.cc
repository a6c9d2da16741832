#include "base/tls_files.h"

#include <arpa/inet.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/certificates.h"
#include "base/status_macros.h"

namespace coxswain {
namespace {

int64_t Nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// 127.0.0.0/8, in the order of the network.
constexpr unsigned char kLoopbackNet = 127;

absl::Status About(absl::string_view path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
}

// Returns the text, or its error with the flag in front.
absl::StatusOr<std::string> FromFlag(absl::string_view flag,
                                     absl::StatusOr<std::string> text) {
  if (!text.ok()) return About(flag, text.status());
  return text;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  auto text = WatchedFile(path).Read();
  if (text.ok()) return text;
  return absl::InvalidArgumentError(text.status().message());
}

absl::Status IsEmpty(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
}

absl::StatusOr<std::string> ReadValid(const std::string& path, absl::Time now) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::string pem, ReadFile(path));
  if (pem.empty()) return IsEmpty(path);
  COXSWAIN_RETURN_IF_ERROR(About(path, CheckCertificates(pem)));
  COXSWAIN_ASSIGN_OR_RETURN(const CertificateFacts facts, ReadCertificate(pem));
  if (now > facts.not_after) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the certificate '", facts.common_name, "' expired at ",
        absl::FormatTime(facts.not_after, absl::UTCTimeZone()), ": renew it"));
  }
  if (now < facts.not_before) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the certificate '", facts.common_name, "' is valid only from ",
        absl::FormatTime(facts.not_before, absl::UTCTimeZone()),
        ": check this host's clock"));
  }
  return pem;
}

// Returns the HOST of HOST:PORT.
absl::string_view HostOf(absl::string_view address) {
  return address.substr(0, address.rfind(':'));
}

}  // namespace

WatchedFile::Mark WatchedFile::MarkOf(const std::string& path) {
  Mark mark;
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return mark;
  mark.device = status.st_dev;
  mark.inode = status.st_ino;
  mark.size = status.st_size;
  mark.modified_ns = Nanoseconds(status.st_mtim);
  mark.changed_ns = Nanoseconds(status.st_ctim);
  return mark;
}

bool WatchedFile::Changed() const {
  if (!noted_) return true;
  const Mark now = MarkOf(path_);
  return now.device != mark_.device || now.inode != mark_.inode ||
         now.size != mark_.size || now.modified_ns != mark_.modified_ns ||
         now.changed_ns != mark_.changed_ns;
}

void WatchedFile::Note() {
  mark_ = MarkOf(path_);
  noted_ = true;
}

absl::StatusOr<std::string> WatchedFile::Read() {
  Note();  // Before: what is written meanwhile is seen as a change.
  if (mark_.size > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path_, " has ", mark_.size,
                                                   " bytes; at most ",
                                                   kMaxBytes, " are read"));
  }
  std::ifstream file(path_, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file.good()) {
    return absl::ErrnoToStatus(errno == 0 ? EIO : errno,
                               absl::StrCat("cannot read ", path_));
  }
  return text.str();
}

bool IsLoopbackHost(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  if (host == "localhost") return true;
  const std::string text(host);
  unsigned char v4[sizeof(in_addr)];
  if (inet_pton(AF_INET, text.c_str(), v4) == 1) return v4[0] == kLoopbackNet;
  in6_addr v6;
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 &&
         IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<TlsTexts> ReadTlsFiles(const TlsFiles& files, absl::Time now) {
  if (files.cert.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tls-cert and --tls-key belong together: ",
        files.cert.empty() ? "--tls-cert" : "--tls-key", " is missing"));
  }
  TlsTexts texts;
  if (!files.ca.empty()) {
    COXSWAIN_ASSIGN_OR_RETURN(texts.ca,
                              FromFlag("--tls-ca", ReadValid(files.ca, now)));
    COXSWAIN_RETURN_IF_ERROR(
        About("--tls-ca", About(files.ca, CheckStrongAuthorities(texts.ca))));
  }
  if (files.cert.empty()) return texts;
  COXSWAIN_ASSIGN_OR_RETURN(texts.cert,
                            FromFlag("--tls-cert", ReadValid(files.cert, now)));
  COXSWAIN_RETURN_IF_ERROR(
      About("--tls-cert", About(files.cert, CheckStrongChain(texts.cert))));
  COXSWAIN_ASSIGN_OR_RETURN(const std::string key,
                            FromFlag("--tls-key", ReadFile(files.key)));
  absl::Status good = key.empty()
                          ? IsEmpty(files.key)
                          : About(files.key, CheckKeyBelongs(texts.cert, key));
  COXSWAIN_RETURN_IF_ERROR(About("--tls-key", good));
  COXSWAIN_ASSIGN_OR_RETURN(texts.key, OnlyKey(key));
  return texts;
}

absl::Status CheckTlsFiles(const TlsFiles& files, absl::Time now) {
  return ReadTlsFiles(files, now).status();
}

absl::Status CheckClientSecurity(const ClientSecurity& security,
                                 absl::string_view addresses, absl::Time now) {
  COXSWAIN_RETURN_IF_ERROR(CheckTlsFiles(security.tls, now));
  if (security.tls.ca.empty() && !security.tls.cert.empty()) {
    return absl::InvalidArgumentError(
        "--tls-cert without --tls-ca: give the certificate authority that "
        "has signed the coordinator's certificate");
  }
  if (security.token_file.empty()) return absl::OkStatus();
  COXSWAIN_RETURN_IF_ERROR(
      About("--token-file", ReadFile(security.token_file).status()));
  if (!security.tls.ca.empty() || security.insecure) return absl::OkStatus();
  for (const absl::string_view address : absl::StrSplit(addresses, ',')) {
    if (IsLoopbackHost(HostOf(address))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the token of ", security.token_file, " would go to ", address,
        " in plain text: give --tls-ca, or --insecure if you trust the "
        "network"));
  }
  return absl::OkStatus();
}

}  // namespace coxswain
