#ifndef COXSWAIN_CLIENT_COMM_DATA_KEY_H_
#define COXSWAIN_CLIENT_COMM_DATA_KEY_H_

#include <strings.h>

#include <cstdint>
#include <string>
#include <utility>

namespace coxswain {

// The secret of a generation, from which its ranks make the keys of the
// connections between them. From the answer to Join alone; never printed,
// logged or stored. Overwritten at its end. Immutable.
class DataKey {
 public:
  static constexpr size_t kBytes = 32;

  DataKey(std::string job, int64_t generation, std::string secret)
      : job_(std::move(job)),
        generation_(generation),
        secret_(std::move(secret)) {}
  ~DataKey() { explicit_bzero(secret_.data(), secret_.size()); }
  DataKey(const DataKey&) = delete;
  DataKey& operator=(const DataKey&) = delete;

  const std::string& job() const { return job_; }
  int64_t generation() const { return generation_; }
  const std::string& secret() const { return secret_; }

 private:
  const std::string job_;
  const int64_t generation_;
  std::string secret_;
};

}  // namespace coxswain

#endif  // COXSWAIN_CLIENT_COMM_DATA_KEY_H_
