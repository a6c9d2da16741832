#include "client/session/attachment.h"

#include <memory>

#include "base/no_threads_for_test.h"
#include "base/status_matchers.h"
#include "client/rpc/fake_coordinator_stub.h"
#include "client/rpc/member_context.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coxswain {
namespace {

using ::testing::_;

TEST(AttachmentTest, WithoutAThreadItIsNotAttached) {
  const auto member = std::make_shared<MemberContext>(
      std::make_shared<FakeCoordinatorStub>(), v1::Fence(), RetryPolicy());
  std::unique_ptr<Attachment> attachment;
  {
    const NoThreads none;
    attachment = std::make_unique<Attachment>(member, Attachment::Options(),
                                              Attachment::Callbacks());
  }
  EXPECT_THAT(attachment->WaitUntilAttached(absl::InfiniteDuration()),
              StatusIs(absl::StatusCode::kResourceExhausted, _));
  attachment->Stop();
}

}  // namespace
}  // namespace coxswain
