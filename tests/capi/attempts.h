#ifndef COXSWAIN_TESTS_CAPI_ATTEMPTS_H_
#define COXSWAIN_TESTS_CAPI_ATTEMPTS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "tests/capi/loaded_library.h"

// Jobs that are started again.
namespace coxswain::capi_test {

// Ranks of one attempt of a job, each of which calls `work` in a thread of its
// own, leaves and closes its session.
inline void RunAttempt(
    const std::string& job, int64_t attempt, int count,
    const std::function<void(int rank, cx_session session)>& work,
    const char* plan = "") {
  Together(count, [&](int slot) {
    cx_join_options options = OptionsOf(job.c_str(), slot, count);
    options.attempt = attempt;
    options.plan = plan;
    cx_session session = 0;
    ASSERT_EQ(Library().cx_join(&options, &session, nullptr), CX_OK)
        << Message();
    auto info = Init<cx_session_info>();
    ASSERT_EQ(Library().cx_info(session, &info), CX_OK);
    work(info.rank, session);
    EXPECT_EQ(Library().cx_leave(session, "done", 0, nullptr), CX_OK);
    EXPECT_EQ(Library().cx_close(session), CX_OK);
  });
}

// Waits for the save in progress.
inline cx_checkpoint_report Saved(cx_session session) {
  auto report = Init<cx_checkpoint_report>();
  EXPECT_EQ(InSlices([&](cx_call* call) {
              return Library().cx_checkpoint_saved(session, 30000, &report,
                                                   call);
            }),
            CX_OK)
      << Message();
  return report;
}

}  // namespace coxswain::capi_test

#endif  // COXSWAIN_TESTS_CAPI_ATTEMPTS_H_
