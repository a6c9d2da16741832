#ifndef COXSWAIN_BASE_VERSION_H_
#define COXSWAIN_BASE_VERSION_H_

namespace coxswain {

// The version of this project, as in CHANGELOG.md.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace coxswain

#endif  // COXSWAIN_BASE_VERSION_H_
