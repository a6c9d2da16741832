#ifndef COXSWAIN_TESTS_SECURITY_TEST_CERTIFICATES_H_
#define COXSWAIN_TESTS_SECURITY_TEST_CERTIFICATES_H_

#include <string>

#include "absl/time/time.h"
#include "base/certificates.h"
#include "base/tls_files.h"

namespace coxswain {

// A certificate authority and what it has signed, in a folder of one test.
// Aborts the test program where OpenSSL fails.
class TestCertificates {
 public:
  explicit TestCertificates(const std::string& name);

  // Makes NAME.crt and NAME.key, or replaces them by renaming, as programs that
  // renew certificates do. For 127.0.0.1.
  TlsFiles Issue(const std::string& name, const std::string& uri);
  TlsFiles Issue(const std::string& name, const std::string& uri,
                 const Validity& validity);

  TlsFiles Coordinator() { return Issue("coordinator", kCoordinatorUri); }
  TlsFiles Operator() { return Issue("operator", kOperatorUri); }
  TlsFiles Job(const std::string& job) {
    return Issue("job-" + job, kJobUriPrefix + job);
  }

  // Replaces the authority by another one.
  void Renew();

  std::string Path(const std::string& file) const;
  std::string Read(const std::string& file) const;
  // Replaces a file in one piece.
  std::string Write(const std::string& file, const std::string& text) const;

 private:
  const std::string folder_;
  CertificateAuthority ca_;
};

// Returns a validity of an hour around now.
Validity ValidNow();

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_SECURITY_TEST_CERTIFICATES_H_
