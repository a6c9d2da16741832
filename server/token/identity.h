#ifndef COXSWAIN_SERVER_TOKEN_IDENTITY_H_
#define COXSWAIN_SERVER_TOKEN_IDENTITY_H_

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coxswain::server {

// Who calls, as a certificate or a token has proved. A value.
struct Identity {
  bool is_operator = false;
  std::string job;    // of one that is no operator
  std::string proof;  // for messages: which certificate, or whose token

  std::string ToString() const {
    return absl::StrCat(is_operator ? "an operator" : absl::StrCat("job ", job),
                        " (", proof, ")");
  }
};

}  // namespace coxswain::server

#endif  // COXSWAIN_SERVER_TOKEN_IDENTITY_H_
