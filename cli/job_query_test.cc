#include "cli/job_query.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

TEST(TlsHintTest, AConnectionThatWasCutOffMayLackCertificates) {
  const absl::Status error = absl::UnavailableError(
      "failed to connect: recvmsg:Connection reset by peer");
  EXPECT_THAT(std::string(HintAtTls(error, {}).message()),
              HasSubstr("reset by peer. If the coordinator requires TLS, give "
                        "--tls-ca"));
  ClientSecurity security;
  security.tls.ca = "ca.crt";
  EXPECT_THAT(
      std::string(HintAtTls(absl::UnavailableError("Socket closed"), security)
                      .message()),
      HasSubstr("--tls-cert"));
  security.token_file = "token";
  EXPECT_EQ(HintAtTls(error, security), error) << "all is given";
}

TEST(TlsHintTest, OtherErrorsHaveOtherCauses) {
  for (const absl::Status& error :
       {absl::OkStatus(), absl::UnavailableError("Connection refused"),
        absl::NotFoundError("no job named Socket closed")}) {
    EXPECT_EQ(HintAtTls(error, {}), error);
  }
}

}  // namespace
}  // namespace coxswain
