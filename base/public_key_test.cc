#include "base/public_key.h"

#include <string>

#include "absl/strings/escaping.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using testing::HasSubstr;

std::string Bytes(absl::string_view base64url) {
  std::string bytes;
  EXPECT_TRUE(absl::WebSafeBase64Unescape(base64url, &bytes));
  return bytes;
}

// The examples of RFC 7515, appendices A.2 and A.3.
constexpr char kPayload[] =
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNv"
    "bS9pc19yb290Ijp0cnVlfQ";
constexpr char kModulus[] =
    "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qP"
    "CJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47s"
    "oMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2"
    "R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoud"
    "F8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
constexpr char kRsaSignature[] =
    "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4B"
    "h-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZ"
    "LgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_d"
    "O--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6"
    "LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
constexpr char kX[] = "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU";
constexpr char kY[] = "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0";
constexpr char kEcSignature[] =
    "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKT"
    "UJqPP3-Kg6NU1Q";
const char kExponent[] = {1, 0, 1};
const absl::string_view kE(kExponent, sizeof(kExponent));

std::string RsaText() {
  return std::string("eyJhbGciOiJSUzI1NiJ9.") + kPayload;
}
std::string EcText() { return std::string("eyJhbGciOiJFUzI1NiJ9.") + kPayload; }

TEST(PublicKeyTest, ChecksTheExamplesOfTheStandard) {
  ASSERT_OK_AND_ASSIGN(const PublicKey rsa,
                       PublicKey::Rsa(Bytes(kModulus), kE));
  ASSERT_OK_AND_ASSIGN(const PublicKey ec,
                       PublicKey::P256(Bytes(kX), Bytes(kY)));
  EXPECT_EQ(rsa.kind(), SignatureKind::kRs256);
  EXPECT_EQ(ec.kind(), SignatureKind::kEs256);
  EXPECT_TRUE(rsa.HasSigned(RsaText(), Bytes(kRsaSignature)));
  EXPECT_TRUE(ec.HasSigned(EcText(), Bytes(kEcSignature)));
}

TEST(PublicKeyTest, WhatWasChangedIsNotSigned) {
  ASSERT_OK_AND_ASSIGN(const PublicKey rsa,
                       PublicKey::Rsa(Bytes(kModulus), kE));
  ASSERT_OK_AND_ASSIGN(const PublicKey ec,
                       PublicKey::P256(Bytes(kX), Bytes(kY)));
  EXPECT_FALSE(rsa.HasSigned(RsaText() + "x", Bytes(kRsaSignature)));
  EXPECT_FALSE(ec.HasSigned(EcText() + "x", Bytes(kEcSignature)));
  for (std::string signature :
       {Bytes(kRsaSignature), Bytes(kEcSignature), std::string(64, '\0'),
        std::string(64, '\xff'), std::string(256, '\0'), std::string()}) {
    if (!signature.empty())
      signature.back() = static_cast<char>(~signature.back());
    EXPECT_FALSE(rsa.HasSigned(RsaText(), signature));
    EXPECT_FALSE(ec.HasSigned(EcText(), signature));
    signature.push_back('\0');
    EXPECT_FALSE(rsa.HasSigned(RsaText(), signature));
    EXPECT_FALSE(ec.HasSigned(EcText(), signature));
  }
}

TEST(PublicKeyTest, KeysOutOfBoundsAreRefused) {
  const auto refused = [](absl::string_view what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  const std::string n = Bytes(kModulus);
  EXPECT_THAT(PublicKey::Rsa(n.substr(1), kE), refused("2048 to 8192"));
  EXPECT_THAT(PublicKey::Rsa(std::string(1025, '\xff'), kE),
              refused("2048 to 8192"));
  EXPECT_THAT(PublicKey::Rsa(std::string(1 << 20, '\xff'), kE),
              refused("at most 8192"));
  EXPECT_THAT(PublicKey::Rsa(n, "\x01"), refused("not 1"));
  EXPECT_THAT(PublicKey::Rsa(n, "\x02"), refused("odd"));
  EXPECT_THAT(PublicKey::Rsa(n, ""), refused("odd"));
  EXPECT_THAT(PublicKey::Rsa(n, "12345"), refused("4 bytes"));
  EXPECT_THAT(PublicKey::Rsa("", kE), refused("0 bits"));
  EXPECT_THAT(PublicKey::P256(Bytes(kX), Bytes(kX)), refused("no point"));
  EXPECT_THAT(PublicKey::P256(Bytes(kX), "y"), refused("32 bytes"));
  const std::string zero(32, '\0');
  EXPECT_THAT(PublicKey::P256(zero, zero), refused("no point"));
}

}  // namespace
}  // namespace coxswain
