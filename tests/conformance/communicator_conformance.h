#ifndef COXSWAIN_TESTS_CONFORMANCE_COMMUNICATOR_CONFORMANCE_H_
#define COXSWAIN_TESTS_CONFORMANCE_COMMUNICATOR_CONFORMANCE_H_

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/comm/communicator.h"
#include "gtest/gtest.h"

// What every back end must do, as tests. A back end's test file links
// //tests/conformance:communicator_conformance and has
//
//   INSTANTIATE_TEST_SUITE_P(Tcp, CommunicatorConformance,
//                            testing::Values(TcpCase()), CaseName);

namespace coxswain {

// A back end under test: how its ranks are made, and what it can do.
struct CommunicatorCase {
  std::string name;
  // Returns all ranks of a new group, connected, in this process. Called with
  // each of `sizes`; may be called again while older groups live.
  std::function<std::vector<std::unique_ptr<Communicator>>(
      int size, absl::Duration timeout)>
      make_group;
  std::vector<int> sizes = {1, 2, 3, 4};

  // The optional abilities; where one is false UNIMPLEMENTED is expected.
  bool all_gather = true;
  bool reduce_scatter = true;
  bool all_to_all = true;
  bool messages = true;
  bool mean = false;
  bool channels = false;  // channel_conformance.h
  // Whether an operation waits for its peers, so that it can be caught
  // waiting; not so for a group of one.
  bool waits = true;
  // Whether ranks that begin different collectives are distinguished.
  bool compares = true;
  // Where memory is that it does not move.
  Device elsewhere = {Device::Kind::kCuda, 0};
  // Whether data goes through a transport that wire_bytes() counts.
  bool has_wire = false;
  // Returns the wire bytes of an all-reduce for each byte of it, by the number
  // of ranks; null: those of a ring.
  std::function<double(int size)> wire_share;
  // Whether ranks have different shares.
  bool has_unequal_wire = false;
};

inline void PrintTo(const CommunicatorCase& value, std::ostream* out) {
  *out << value.name;
}

inline std::string CaseName(
    const testing::TestParamInfo<CommunicatorCase>& info) {
  return info.param.name;
}

class CommunicatorConformance
    : public testing::TestWithParam<CommunicatorCase> {};

}  // namespace coxswain

#endif  // COXSWAIN_TESTS_CONFORMANCE_COMMUNICATOR_CONFORMANCE_H_
