#ifndef COXSWAIN_TESTS_CAPI_EXCHANGE_STEPS_H_
#define COXSWAIN_TESTS_CAPI_EXCHANGE_STEPS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/capi/loaded_library.h"

// Steps of ranks that exchange two matrices, and what their hook remembers.
namespace coxswain::capi_test {

inline const LoadedLibrary& api = Library();

inline constexpr int64_t kSide = 8;
inline constexpr int64_t kCount = kSide * kSide;
inline constexpr char kPowerSgd[] =
    "commit_vote=true hook=powersgd(rank=1,start_step=2)";

// Two matrices, each in a bucket of its own; the second one comes first.
inline cx_code Open(cx_session session, const char* stream = nullptr,
                    const char* name = "a") {
  const int64_t shape[] = {kSide, kSide};
  const cx_parameter parameters[] = {{name, shape, 2, CX_FLOAT32},
                                     {"b", shape, 2, CX_FLOAT32}};
  return InSlices([&](cx_call* call) {
    return api.cx_exchange_open(session, stream, parameters, 2, call);
  });
}

inline cx_code Announce(cx_session session, int64_t step,
                        const char* stream = nullptr) {
  auto ticket = Init<cx_ticket>();
  ticket.stream = stream;
  ticket.step = step;
  ticket.micro_batches = 1;
  return api.cx_announce(session, &ticket);
}

inline cx_code HandOver(cx_session session, int index, std::vector<float>* data,
                        const char* stream = nullptr) {
  const cx_slot slot = {1 - index, 0, 0, kCount};
  auto bucket = Init<cx_bucket>();
  bucket.index = index;
  bucket.last = index;
  bucket.data = data->data();
  bucket.count = static_cast<int64_t>(data->size());
  bucket.slots = &slot;
  bucket.slot_count = 1;
  bucket.dtype = CX_FLOAT32;
  return api.cx_exchange_bucket(session, stream, &bucket);
}

inline cx_code Await(cx_session session, const char* stream = nullptr) {
  return InSlices([&](cx_call* call) {
    return api.cx_exchange_wait(session, stream, call);
  });
}

inline cx_code Decide(cx_session session, bool refuse, cx_decision* decision,
                      const char* stream = nullptr) {
  *decision = Init<cx_decision>();
  auto vote = Init<cx_vote>();
  vote.refuse = refuse ? 1 : 0;
  return api.cx_decide(session, stream, &vote, decision, nullptr);
}

// Exchanges two buckets whose elements are all different.
inline std::vector<float> Step(cx_session session, int64_t step, int rank,
                               bool refuse = false,
                               const char* stream = nullptr) {
  std::vector<float> data[2];
  for (int64_t i = 0; i < kCount; ++i) {
    data[0].push_back(static_cast<float>((i * i + step) % 7 + rank));
    data[1].push_back(static_cast<float>((i * 3 + step) % 5 - rank));
  }
  EXPECT_EQ(Announce(session, step, stream), CX_OK) << Message();
  EXPECT_EQ(HandOver(session, 0, &data[0], stream), CX_OK) << Message();
  EXPECT_EQ(HandOver(session, 1, &data[1], stream), CX_OK) << Message();
  EXPECT_EQ(Await(session, stream), CX_OK) << Message();
  cx_decision decision;
  EXPECT_EQ(Decide(session, refuse, &decision, stream), CX_OK) << Message();
  EXPECT_EQ(decision.commit, refuse ? 0 : 1);
  data[0].insert(data[0].end(), data[1].begin(), data[1].end());
  return data[0];
}

inline std::string State(cx_session session, int32_t whole) {
  const void* state = nullptr;
  size_t size = 0;
  EXPECT_EQ(InSlices([&](cx_call* call) {
              return api.cx_hook_save(session, nullptr, whole, &state, &size,
                                      call);
            }),
            CX_OK)
      << Message();
  return std::string(static_cast<const char*>(state), size);
}

inline cx_code Load(cx_session session, const std::vector<std::string>& parts) {
  std::vector<cx_bytes> given;
  for (const std::string& part : parts) {
    given.push_back({part.data(), part.size()});
  }
  return api.cx_hook_load(session, nullptr, given.data(), given.size());
}

}  // namespace coxswain::capi_test

#endif  // COXSWAIN_TESTS_CAPI_EXCHANGE_STEPS_H_
