#ifndef COXSWAIN_CLI_CERTS_H_
#define COXSWAIN_CLI_CERTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/options.h"

namespace coxswain {

// `coxswain certs`: a certificate authority in a folder, and certificates for
// the coordinator, an operator and each job. Nothing is ever overwritten, and
// keys can be read by their owner only.
//
//   ca.crt ca.key coordinator.crt coordinator.key operator.crt operator.key
//   job-NAME.crt job-NAME.key
//
// Returns what to print. ALREADY_EXISTS names a file that is there already,
// NOT_FOUND one that is missing; other errors are those of the disk.
absl::StatusOr<std::string> RunCerts(const CertsOptions& options,
                                     absl::Time now);

}  // namespace coxswain

#endif  // COXSWAIN_CLI_CERTS_H_
