// One rank of a benchmark of communicators alone. Reads commands from standard
// input, a line each, until its end:
//
//   allreduce BYTES COUNT   sums up float32 in the back end's own memory,
//                           COUNT times; the median's time
//   reducescatter BYTES COUNT   the same of a reduce-scatter
//   channel BYTES COUNT     a block from one rank to the other, through a
//                           channel; half the time of both ways, of two ranks
//   message BYTES COUNT     the same of Send and Receive
//   pipeline SCHEDULE MICRO_BATCHES FORWARD BACKWARD ELEMENTS COUNT   a step of
//                           a pipeline whose stages sleep so many us; of COUNT
//                           the median
//   copy BYTES COUNT        what copying takes, on all ranks at once
//   exchange BYTES COUNT    what two sockets take to send as much each way as
//                           an all-reduce of BYTES does, of two ranks
//   aes BYTES COUNT         what encrypting and decrypting as much as an
//                           all-reduce of BYTES sends and receives, of two
//                           ranks, takes a rank, on all of them at once
//   ring HOSTS COUNT        finding the ring of hosts, which links of any cost
//                           connect
//   regroup                 ends this generation once its links are measured,
//                           and connects the next one, which is ordered by them
//
// and answers each with a line of JSON, of seconds ("regroup" with {"ring":
// TEXT}, the ring that rank 0 has chosen and why); or ends with an error on
// stderr.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/cancel_signal.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/comm/backends/registry.h"
#include "client/comm/data_key.h"
#include "client/comm/measured_links.h"
#include "client/comm/tcp/ring_order.h"
#include "nlohmann/json.hpp"
#include "tests/bench/worker/aes_limit.h"
#include "tests/bench/worker/median.h"
#include "tests/bench/worker/raw_pair.h"
#include "tests/bench/worker/sleeping_pipeline.h"
#include "tests/support/file_store.h"

namespace coxswain::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);

struct Options {
  int rank = 0;
  int size = 2;
  std::string store;
  std::string backend = "auto";
  std::string address = "127.0.0.1";
  bool encrypts = false;
};

// The generations of this rank, one after the other. As in a session, what one
// has measured of the links is there for the next.
class Generations {
 public:
  explicit Generations(const Options& options);

  // Connects the next one; the one before has ended.
  absl::Status Connect();
  // Waits until this one knows what each link costs, where each rank is a host.
  absl::Status AwaitLinks() const;

  const CommunicatorOptions& where() const { return where_; }
  Communicator& communicator() { return *communicator_; }
  std::string ring() const { return where_.links->ring(); }

 private:
  const Options options_;
  CommunicatorOptions where_;
  int64_t generation_ = 0;
  std::unique_ptr<Communicator> communicator_;
};

Generations::Generations(const Options& options) : options_(options) {
  where_.rank = options.rank;
  where_.size = options.size;
  where_.address = options.address;
  where_.store = std::make_shared<FileStore>(options.store);
  where_.timeout = kTimeout;
  where_.links = std::make_shared<MeasuredLinks>();
  where_.measures_links = true;
  where_.encrypts = options.encrypts;
}

absl::Status Generations::Connect() {
  communicator_.reset();
  where_.id = absl::StrCat("bench-", ++generation_);
  if (where_.encrypts) {
    where_.data_key = std::make_shared<DataKey>(
        "bench", generation_, std::string(DataKey::kBytes, 'k'));
  }
  COXSWAIN_ASSIGN_OR_RETURN(communicator_,
                            coxswain::Connect(options_.backend, where_));
  return absl::OkStatus();
}

absl::Status Generations::AwaitLinks() const {
  const auto links = static_cast<size_t>(where_.size * (where_.size - 1) / 2);
  const absl::Time end = Clock::Real()->Now() + kTimeout;
  const CancelSignal never;
  while (where_.links->costs().size() < links) {
    if (Clock::Real()->Now() > end) {
      return absl::DeadlineExceededError(
          absl::StrCat("of ", links, " links ", where_.links->costs().size(),
                       " were measured: there are as many only where each "
                       "rank is in a network of its own"));
    }
    never.WaitFor(absl::Milliseconds(10));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> Reduce(Communicator& communicator, bool scatters,
                              int64_t bytes, int64_t count) {
  COXSWAIN_ASSIGN_OR_RETURN(
      const std::unique_ptr<BufferOwner> buffer,
      communicator.AllocateBuffer(bytes / 4, DType::kFloat32));
  const Span span = buffer->span();
  std::fill_n(static_cast<float*>(span.data), span.count, 0.0f);
  Span own = span;
  own.count = span.count / communicator.size();
  std::vector<float> result(static_cast<size_t>(own.count));
  own.data = result.data();
  const auto run = [&] {
    return (scatters ? communicator.ReduceScatter(span, own)
                     : communicator.AllReduce(span))
        ->Wait(kTimeout);
  };
  COXSWAIN_RETURN_IF_ERROR(run());
  COXSWAIN_ASSIGN_OR_RETURN(const double median, Median(count, run));
  COXSWAIN_RETURN_IF_ERROR(communicator.Barrier()->Wait(kTimeout));
  return median;
}

// A block to the other rank and back, of which each way is half.
template <typename Send, typename Receive>
absl::StatusOr<double> OneWay(Communicator& communicator, int64_t count,
                              Send send, Receive receive) {
  const auto there_and_back = [&]() -> absl::Status {
    if (communicator.rank() == 0) {
      COXSWAIN_RETURN_IF_ERROR(send());
      return receive();
    }
    COXSWAIN_RETURN_IF_ERROR(receive());
    return send();
  };
  COXSWAIN_RETURN_IF_ERROR(there_and_back());
  COXSWAIN_ASSIGN_OR_RETURN(const double median, Median(count, there_and_back));
  COXSWAIN_RETURN_IF_ERROR(communicator.Barrier()->Wait(kTimeout));
  return median / 2;
}

absl::StatusOr<double> Message(Communicator& communicator, int64_t bytes,
                               int64_t count) {
  std::vector<char> block(static_cast<size_t>(bytes));
  const Span span = {block.data(), bytes, DType::kUInt8, {}};
  const int peer = 1 - communicator.rank();
  return OneWay(
      communicator, count,
      [&] { return communicator.Send(span, peer, 0)->Wait(kTimeout); },
      [&] { return communicator.Receive(span, peer, 0)->Wait(kTimeout); });
}

absl::StatusOr<double> Channel(Communicator& communicator, int64_t bytes,
                               int64_t count) {
  static uint32_t tag = 0;  // each is used once
  std::vector<char> block(static_cast<size_t>(bytes));
  const Span span = {block.data(), bytes, DType::kUInt8, {}};
  const ChannelOptions options = {1 - communicator.rank(), ++tag, bytes, 2};
  COXSWAIN_ASSIGN_OR_RETURN(const auto sender,
                            communicator.OpenSender(options));
  COXSWAIN_ASSIGN_OR_RETURN(const auto receiver,
                            communicator.OpenReceiver(options));
  return OneWay(
      communicator, count, [&] { return sender->Send(span, kTimeout); },
      [&] { return receiver->Receive(span, kTimeout); });
}

absl::StatusOr<double> Copy(Communicator& communicator, int64_t bytes,
                            int64_t count) {
  std::vector<char> from(static_cast<size_t>(bytes), 1);
  std::vector<char> to(static_cast<size_t>(bytes), 2);
  return Median(count, [&] {
    COXSWAIN_RETURN_IF_ERROR(communicator.Barrier()->Wait(kTimeout));
    std::memcpy(to.data(), from.data(), to.size());
    from[0] = to[to.size() - 1];
    return absl::OkStatus();
  });
}

// In an all-reduce of two ranks each of them sends and receives two halves, the
// second of which depends on the first, so as many bytes as it has.
absl::StatusOr<double> Exchange(const CommunicatorOptions& options,
                                int64_t bytes, int64_t count) {
  static absl::StatusOr<RawPair>* const pair =
      new absl::StatusOr<RawPair>(RawPair::Connect(options));
  COXSWAIN_RETURN_IF_ERROR(pair->status());
  COXSWAIN_RETURN_IF_ERROR((*pair)->Exchange(bytes));
  return Median(count, [&] { return (*pair)->Exchange(bytes); });
}

// In such an all-reduce a rank encrypts BYTES and decrypts as many.
absl::StatusOr<double> Aes(Communicator& communicator, int64_t bytes,
                           int64_t count) {
  COXSWAIN_ASSIGN_OR_RETURN(const std::unique_ptr<AesLimit> limit,
                            AesLimit::Create());
  COXSWAIN_RETURN_IF_ERROR(limit->Run(bytes));
  return Median(count, [&] {
    COXSWAIN_RETURN_IF_ERROR(communicator.Barrier()->Wait(kTimeout));
    return limit->Run(bytes);
  });
}

absl::StatusOr<double> Ring(int64_t hosts, int64_t count) {
  std::mt19937_64 random(1);
  LinkCosts costs(static_cast<int>(hosts));
  return Median(count, [&] {
    for (int a = 0; a < costs.hosts(); ++a) {
      for (int b = 0; b < a; ++b) {
        costs.Set(a, b, 100 + static_cast<int64_t>(random() % 100'000));
      }
    }
    const HostRing ring = FindRing(costs);
    if (hosts <= kExactHosts || ring.slowest * 100 <= ring.bound * 105) {
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("a ring with a slowest edge of ",
                                            ring.slowest, ", where ",
                                            ring.bound, " is the bound"));
  });
}

std::vector<int> AllRanks(const Communicator& communicator) {
  std::vector<int> ranks(static_cast<size_t>(communicator.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

absl::StatusOr<double> PipelineStep(Communicator& communicator,
                                    std::istringstream words) {
  std::string schedule;
  int micro_batches = 0;
  int64_t forward = 0;
  int64_t backward = 0;
  int64_t elements = 0;
  int64_t count = 0;
  words >> schedule >> micro_batches >> forward >> backward >> elements >>
      count;
  if (!words || count < 1) {
    return absl::InvalidArgumentError("pipeline has six arguments");
  }
  // One at a time: a channel's tag is used once.
  COXSWAIN_ASSIGN_OR_RETURN(const auto own,
                            communicator.Split(AllRanks(communicator)));
  COXSWAIN_ASSIGN_OR_RETURN(
      const auto pipeline,
      SleepingPipeline::Create(own.get(), schedule, micro_batches,
                               absl::Microseconds(forward),
                               absl::Microseconds(backward), elements));
  const auto step = [&] {
    COXSWAIN_RETURN_IF_ERROR(pipeline->Run());
    return own->Barrier()->Wait(kTimeout);
  };
  COXSWAIN_RETURN_IF_ERROR(step());
  return Median(count, step);
}

absl::StatusOr<double> Obey(Generations& generations, const std::string& line) {
  Communicator& communicator = generations.communicator();
  std::istringstream words(line);
  std::string command;
  int64_t bytes = 0;
  int64_t count = 0;
  words >> command;
  if (command == "pipeline")
    return PipelineStep(communicator, std::move(words));
  words >> bytes >> count;
  if (words && bytes >= 4 && count >= 1) {
    if (command == "allreduce" || command == "reducescatter") {
      return Reduce(communicator, command == "reducescatter", bytes, count);
    }
    if (communicator.size() == 2 && command == "channel") {
      return Channel(communicator, bytes, count);
    }
    if (communicator.size() == 2 && command == "message") {
      return Message(communicator, bytes, count);
    }
    if (command == "copy") return Copy(communicator, bytes, count);
    if (command == "exchange") {
      return Exchange(generations.where(), bytes, count);
    }
    if (command == "aes") return Aes(communicator, bytes, count);
    if (command == "ring") return Ring(bytes, count);
  }
  return absl::InvalidArgumentError(absl::StrCat("no such command: ", line));
}

absl::Status Serve(const Options& options) {
  Generations generations(options);
  COXSWAIN_RETURN_IF_ERROR(generations.Connect());
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line == "regroup") {
      COXSWAIN_RETURN_IF_ERROR(generations.AwaitLinks());
      COXSWAIN_RETURN_IF_ERROR(generations.Connect());
      std::cout << nlohmann::json{{"ring", generations.ring()}} << std::endl;
      continue;
    }
    COXSWAIN_ASSIGN_OR_RETURN(const double seconds, Obey(generations, line));
    std::cout << absl::StrFormat("{\"median\": %.9f}", seconds) << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace coxswain::bench

int main(int argc, char** argv) {
  CLI::App app("One rank of a benchmark of communicators; see comm_main.cc");
  coxswain::bench::Options options;
  app.add_option("--rank", options.rank)->required();
  app.add_option("--size", options.size)->capture_default_str();
  app.add_option("--store", options.store, "a folder that all ranks share")
      ->required();
  app.add_option("--backend", options.backend)->capture_default_str();
  app.add_option("--address", options.address, "where peers reach this rank")
      ->capture_default_str();
  app.add_flag("--encrypts", options.encrypts, "of tcp: TLS between the ranks");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = coxswain::bench::Serve(options);
  if (status.ok()) return 0;
  std::cerr << "bench worker, rank " << options.rank << ": " << status.message()
            << std::endl;
  return 1;
}
