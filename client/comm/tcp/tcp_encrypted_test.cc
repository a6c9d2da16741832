#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/comm/data_key.h"
#include "client/comm/memory_store.h"
#include "client/comm/tcp/connections.h"
#include "client/comm/tcp/raw_tcp_peer_for_test.h"
#include "client/comm/tcp/relay_for_test.h"
#include "client/comm/tcp/tcp_communicator.h"
#include "client/comm/work.h"
#include "tests/conformance/channel_conformance.h"
#include "tests/conformance/communicator_conformance.h"
#include "tests/conformance/connected_group.h"

namespace coxswain {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using EncryptedGroup = std::vector<std::unique_ptr<Communicator>>;

constexpr absl::Duration kEnough = absl::Minutes(1);
const char kSecret[] = "0123456789abcdef0123456789ABCDEF";

std::shared_ptr<const DataKey> KeyOfTest(const std::string& job = "mnist",
                                         int64_t generation = 7,
                                         std::string secret = kSecret) {
  return std::make_shared<DataKey>(job, generation, std::move(secret));
}

CommunicatorOptions Encrypted(
    CommunicatorOptions options,
    std::shared_ptr<const DataKey> key = KeyOfTest()) {
  options.encrypts = true;
  options.data_key = std::move(key);
  return options;
}

CommunicatorCase EncryptedCase(const std::string& name,
                               const TcpTuning& tuning) {
  CommunicatorCase result;
  result.name = name;
  result.make_group = [tuning](int size, absl::Duration timeout) {
    return ConnectGroup(size, timeout, [&](const CommunicatorOptions& options) {
      return ConnectTcpTuned(Encrypted(options), tuning);
    });
  };
  result.has_wire = true;
  result.channels = true;
  result.mean = true;
  return result;
}

TcpTuning ManyChunks() {
  TcpTuning tuning;
  tuning.small_bytes = 0;
  tuning.chunk_bytes = 20000;  // a record and a part of one
  tuning.stripes = 2;
  tuning.direct_ranks = 2;
  return tuning;
}

INSTANTIATE_TEST_SUITE_P(Encrypted, CommunicatorConformance,
                         testing::Values(EncryptedCase("TcpTls", TcpTuning()),
                                         EncryptedCase("TcpTlsChunks",
                                                       ManyChunks())),
                         CaseName);

INSTANTIATE_TEST_SUITE_P(Encrypted, ChannelConformance,
                         testing::Values(EncryptedCase("TcpTls", TcpTuning())),
                         CaseName);

// Connects rank 0 and 1, each as its function has it, and returns how each has
// ended.
std::vector<absl::Status> ConnectPair(const CommunicatorOptions& rank_0,
                                      const CommunicatorOptions& rank_1) {
  std::vector<absl::Status> statuses(2);
  CancelSignal over;
  std::thread called([&] {
    CommunicatorOptions options = rank_0;
    options.cancel = &over;
    statuses[0] = ConnectTcp(options).status();
  });
  {
    auto connected = ConnectTcp(rank_1);
    statuses[1] = connected.status();
    // The called rank waits for its peer to the end.
    if (!connected.ok()) over.Raise(absl::AbortedError("rank 1 has failed"));
    called.join();
  }
  return statuses;
}

// Rank 1 has the second key.
void ExpectRefused(std::shared_ptr<const DataKey> first,
                   std::shared_ptr<const DataKey> second) {
  auto store = std::make_shared<MemoryStore>();
  const auto statuses = ConnectPair(
      Encrypted(TestGroupOptions(0, 2, store, kEnough), std::move(first)),
      Encrypted(TestGroupOptions(1, 2, store, kEnough), std::move(second)));
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("rank 0 at 127.0.0.1:"),
                             HasSubstr("do not have the same key"))));
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kAborted,
                                    HasSubstr("rank 1 has failed")));
}

TEST(TcpEncryptedTest, AWorkerOfAnotherJobIsRefused) {
  ExpectRefused(KeyOfTest("mnist"), KeyOfTest("other"));
}

TEST(TcpEncryptedTest, AWorkerOfAnEarlierGenerationIsRefused) {
  ExpectRefused(KeyOfTest("mnist", 8), KeyOfTest("mnist", 7));
}

TEST(TcpEncryptedTest, AWorkerWithAnotherSecretIsRefused) {
  ExpectRefused(KeyOfTest(),
                KeyOfTest("mnist", 7, std::string(DataKey::kBytes, 'x')));
}

TEST(TcpEncryptedTest, PlainTextAndEncryptedDoNotMix) {
  for (const bool first : {true, false}) {
    auto store = std::make_shared<MemoryStore>();
    const auto plain = [&](int rank) {
      return TestGroupOptions(rank, 2, store, kEnough);
    };
    const auto statuses = ConnectPair(first ? Encrypted(plain(0)) : plain(0),
                                      first ? plain(1) : Encrypted(plain(1)));
    EXPECT_THAT(
        statuses[1],
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 HasSubstr(first ? "rank 0 encrypts its data connections, and "
                                   "rank 1 does not"
                                 : "rank 1 encrypts its data connections, and "
                                   "rank 0 does not")));
  }
}

TEST(TcpEncryptedTest, WithoutItsKeyNoneFallsBackToPlainText) {
  const CommunicatorOptions options =
      TestGroupOptions(0, 2, std::make_shared<MemoryStore>(), kEnough);
  EXPECT_THAT(ConnectTcp(Encrypted(options, nullptr)),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("given rank 0 no key")));
  EXPECT_THAT(ConnectTcp(Encrypted(options, KeyOfTest("mnist", 1, "short"))),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("its key has 5 bytes, and not 32")));
}

// Rank 0 of a group, and strangers that call it; in the end rank 1 comes.
void WithStrangers(int size,
                   const std::function<void(const CommunicatorOptions&,
                                            const RawTcpPeer&)>& call) {
  auto store = std::make_shared<MemoryStore>();
  EncryptedGroup group(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  const auto connect = [&](int rank) {
    ranks.emplace_back([&, rank] {
      auto connected =
          ConnectTcp(Encrypted(TestGroupOptions(rank, size, store, kEnough)));
      ASSERT_OK(connected);
      group[static_cast<size_t>(rank)] = *std::move(connected);
    });
  };
  connect(0);
  const CommunicatorOptions options = TestGroupOptions(0, size, store, kEnough);
  const RawTcpPeer stranger(options);
  call(options, stranger);
  for (int rank = 1; rank < size; ++rank) connect(rank);
  for (auto& rank : ranks) rank.join();
}

bool IsClosed(const UniqueFd& socket) {
  std::string answer = RawTcpPeer::Read(socket, 1000);
  // At most an alert.
  return answer.size() < 20;
}

TEST(TcpEncryptedTest, StrangersAreDroppedAndDisturbNone) {
  WithStrangers(2, [](const CommunicatorOptions&, const RawTcpPeer& stranger) {
    // What a rank in plain text sends.
    EXPECT_TRUE(IsClosed(stranger.Call(stranger.Hello(0))));
    EXPECT_TRUE(IsClosed(stranger.Call(std::string(5000, 'x'))));
    EXPECT_TRUE(IsClosed(stranger.Call(std::string(5000, '\x16'))));
  });
}

TEST(TcpEncryptedTest, ARankCannotPassForAnother) {
  WithStrangers(
      3, [](const CommunicatorOptions& options, const RawTcpPeer& stranger) {
        CommunicatorOptions third = Encrypted(options);
        third.rank = 2;
        ASSERT_OK_AND_ASSIGN(auto made, TlsKeys::Make(third));
        const std::shared_ptr<const TlsKeys> keys = std::move(made);
        const auto expect_dropped = [&](uint32_t from) {
          ASSERT_OK_AND_ASSIGN(auto socket,
                               BeginConnectTcp(stranger.place().address));
          TcpStream stream(std::move(socket));
          ASSERT_OK(stream.Encrypt(keys, 0));
          TcpHello hello = stranger.Hello(0);
          hello.from = from;
          hello.size = 3;
          const TcpHelloBytes bytes = Encode(hello);
          const iovec part = {const_cast<char*>(bytes.data()), bytes.size()};
          TcpAnswerBytes answer;
          absl::StatusOr<int64_t> sent = 0;
          absl::StatusOr<int64_t> received = 0;
          while (sent.ok() && *sent == 0) sent = stream.Send(&part, 1);
          ASSERT_OK(sent);
          while (received.ok() && *received == 0) {
            received = stream.Receive(answer.data(), answer.size());
          }
          EXPECT_THAT(received, StatusIs(absl::StatusCode::kUnavailable,
                                         HasSubstr("closed the connection")));
        };
        expect_dropped(1);
      });
}

// A server with a certificate, where rank 0 should be.
TEST(TcpEncryptedTest, AStrangerWithACertificateIsNoRank) {
  auto store = std::make_shared<MemoryStore>();
  const CommunicatorOptions options = TestGroupOptions(1, 2, store, kEnough);
  ASSERT_OK_AND_ASSIGN(TcpListener listener, ListenTcp("127.0.0.1"));
  TcpPlace place;
  place.address = listener.address;
  place.encrypts = true;
  ASSERT_OK(store->Set(PlaceLookup::Key(options, 0), EncodePlace(place)));
  std::thread server([&] {
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const certificate = X509_new();
    X509_set_version(certificate, 2);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
    EXPECT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
    std::vector<pollfd> entries = {{listener.socket.get(), POLLIN, 0}};
    PollUntil(&entries, Clock::Real()->Now() + kEnough);
    auto socket = AcceptTcp(listener.socket);
    EXPECT_OK(socket);
    SSL* const ssl = SSL_new(context);
    SSL_set_fd(ssl, socket->get());
    for (int rounds = 0; rounds < 3; ++rounds) {
      std::vector<pollfd> readable = {{socket->get(), POLLIN, 0}};
      PollUntil(&readable, Clock::Real()->Now() + kEnough);
      if (SSL_accept(ssl) == 1) {
        ADD_FAILURE() << "the rank accepts the certificate";
      }
    }
    SSL_free(ssl);
    SSL_CTX_free(context);
    X509_free(certificate);
    EVP_PKEY_free(key);
  });
  EXPECT_THAT(ConnectTcp(Encrypted(options)),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("do not have the same key"),
                             HasSubstr("certificate verify failed"))));
  server.join();
}

// Two ranks with relays between them.
class TcpRelayedTest : public testing::Test {
 protected:
  void Connect(bool encrypts) {
    relays_ = std::make_shared<RelayedStore>(std::make_shared<MemoryStore>());
    std::vector<std::thread> threads;
    group_.resize(2);
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        CommunicatorOptions options =
            TestGroupOptions(rank, 2, relays_, kEnough);
        if (encrypts) options = Encrypted(options);
        auto connected = ConnectTcp(options);
        ASSERT_OK(connected);
        group_[static_cast<size_t>(rank)] = *std::move(connected);
      });
    }
    for (auto& thread : threads) thread.join();
  }

  // All ranks gather these letters, again and again, and send each other some.
  std::vector<absl::Status> Exchange(size_t bytes) {
    std::vector<absl::Status> statuses(2);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        std::string own;
        while (own.size() < bytes) own += "the-gradients-of-a-rank";
        own.resize(bytes);
        std::string all(2 * bytes, ' ');
        std::string message(bytes, ' ');
        Communicator& comm = *group_[rank];
        const int peer = 1 - static_cast<int>(rank);
        const WorkPtr sent = comm.Send(SpanOfText(&own), peer, 1);
        const WorkPtr came = comm.Receive(SpanOfText(&message), peer, 1);
        statuses[rank] =
            comm.AllGather(SpanOfText(&own), SpanOfText(&all))->Wait(kEnough);
        if (statuses[rank].ok()) statuses[rank] = sent->Wait(kEnough);
        if (statuses[rank].ok()) statuses[rank] = came->Wait(kEnough);
        if (!statuses[rank].ok()) comm.Abort("the exchange has failed");
        (void)sent->Wait(kEnough);
        (void)came->Wait(kEnough);
        if (statuses[rank].ok()) {
          EXPECT_EQ(all, own + own);
          EXPECT_EQ(message, own);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    return statuses;
  }

  static Span SpanOfText(std::string* text) {
    Span span;
    span.data = text->data();
    span.count = static_cast<int64_t>(text->size());
    span.dtype = DType::kUInt8;
    return span;
  }

  std::shared_ptr<RelayedStore> relays_;
  EncryptedGroup group_;
};

TEST_F(TcpRelayedTest, NothingReadableTravelsWhereItIsEncrypted) {
  for (const bool encrypts : {false, true}) {
    Connect(encrypts);
    for (const size_t bytes : {2000, 3000000}) {
      for (const absl::Status& status : Exchange(bytes)) EXPECT_OK(status);
    }
    group_[0]->Abort("a-reason-to-end");
    EXPECT_THAT(Exchange(100)[1], Not(IsOk()));
    const std::string seen = relays_->seen();
    EXPECT_GT(seen.size(), 12000000u);
    // Payload, headers, hello and reasons.
    for (const char* text : {"gradients", "CXCO", "CXSTCP", "a-reason"}) {
      EXPECT_EQ(seen.find(text) == std::string::npos, encrypts) << text;
    }
    group_.clear();
  }
}

TEST_F(TcpRelayedTest, WhatIsChangedOnItsWayIsAnError) {
  Connect(/*encrypts=*/true);
  for (const absl::Status& status : Exchange(1000)) EXPECT_OK(status);
  relays_->Garble();
  const std::vector<absl::Status> statuses = Exchange(3000000);
  std::string texts;
  for (const absl::Status& status : statuses) {
    // The one that finds it, and the one that learns of it by an alert; a rank
    // may fail by its message first, and abort the other.
    EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kUnavailable,
                                     absl::StatusCode::kAborted));
    absl::StrAppend(&texts, status.message(), "\n");
  }
  EXPECT_THAT(texts, HasSubstr("changed on its way"));
}

}  // namespace
}  // namespace coxswain
