#ifndef COXSWAIN_TRANSPORT_CERTIFICATE_WATCH_H_
#define COXSWAIN_TRANSPORT_CERTIFICATE_WATCH_H_

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/tls_files.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "transport/memory_file.h"

// Certificates that may be renewed while a program runs. gRPC is never shown
// the files themselves: an empty one would end the process, and others that it
// cannot use would refuse all new connections.

namespace coxswain {

// Copies of some files that have been checked, and stay as they are until the
// files have changed to others that are good as well. Thread-compatible.
class CertificateIntake {
 public:
  // Takes the files at once if they are good. `clock` outlives it.
  CertificateIntake(TlsFiles files, const Clock* clock);

  // To be called again and again. Takes files that have changed once they have
  // stayed the same from one call to the next, so that a certificate is not
  // taken before its key is there. Logs those that are not good, once for each
  // change.
  void Look();

  // Returns OK once it has taken some, else why not.
  absl::Status status() const { return taken_ ? absl::OkStatus() : refused_; }

  // Return where the copies are: the key with its certificates, the
  // certificates of authorities. Empty if no such file is named.
  std::string identity_path() const;
  std::string ca_path() const;

  // Returns whether it can ever take any: see MemoryFile.
  bool valid() const { return identity_.valid() && ca_.valid(); }

 private:
  bool NoteChanges();
  void Take(const absl::StatusOr<TlsTexts>& texts);
  absl::Status HandOver(const TlsTexts& texts);

  const TlsFiles files_;
  const Clock* const clock_;
  std::vector<WatchedFile> watched_;
  bool pending_ = true;   // changed, and not taken
  absl::Status refused_;  // as it was logged last since the files have changed
  std::optional<TlsTexts> taken_;
  MemoryFile identity_;
  MemoryFile ca_;
};

// The certificates of these files for gRPC, watched by a thread. Shared by all
// connections and servers of the process that name the same files, which hold
// it as long as they live (see Holding). Thread-safe.
class CertificateWatch {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(500);

  static std::shared_ptr<const CertificateWatch> Of(const TlsFiles& files);
  ~CertificateWatch();
  CertificateWatch(const CertificateWatch&) = delete;
  CertificateWatch& operator=(const CertificateWatch&) = delete;

  // Returns OK if there are certificates, else what is wrong with the files.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Without certificates no connection is made. Each new connection uses the
  // newest that gRPC has read, within a second.
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider()
      const {
    return provider_;
  }

 private:
  explicit CertificateWatch(const TlsFiles& files);
  bool valid() const ABSL_LOCKS_EXCLUDED(mutex_);
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);

  mutable Mutex mutex_;
  CertificateIntake intake_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;
  CancelSignal stop_;
  std::thread thread_;
};

// Returns `user`, which holds `watch` as long as it lives.
template <typename T>
std::shared_ptr<T> Holding(std::shared_ptr<const CertificateWatch> watch,
                           std::shared_ptr<T> user) {
  struct Both {
    std::shared_ptr<const CertificateWatch> watch;  // ends last
    std::shared_ptr<T> user;
  };
  T* const used = user.get();
  return std::shared_ptr<T>(
      std::make_shared<Both>(Both{std::move(watch), std::move(user)}), used);
}

}  // namespace coxswain

#endif  // COXSWAIN_TRANSPORT_CERTIFICATE_WATCH_H_
