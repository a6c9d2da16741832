#include "base/reset_watch/reset_watch.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/log_rate.h"
#include "base/mutex.h"
#include "base/reset_watch/channelz.h"
#include "base/reset_watch/reset_judge.h"

namespace coxswain {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(100);
// Calls that fail within a period and are no reason to look.
constexpr int64_t kFewFailures = 10;
// Failures are counted later than they happen: it goes on looking for a while.
constexpr absl::Duration kLooksOn = absl::Seconds(2);
// Between looks, in terms of how long the last one took: half of a core is left
// to others, however many connections there are.
constexpr int kRest = 1;

}  // namespace

struct ResetWatch::Port {
  int number;
  int streams;
  std::atomic<int64_t> ended{0};
};

class ResetWatch::Watcher {
 public:
  static std::shared_ptr<Watcher> Get() {
    static auto& mutex = *new Mutex;
    static auto& known = *new std::weak_ptr<Watcher>;
    MutexLock lock(&mutex);
    std::shared_ptr<Watcher> watcher = known.lock();
    if (watcher == nullptr) known = watcher = std::make_shared<Watcher>();
    return watcher;
  }

  Watcher() : thread_([this] { Run(); }) {}
  ~Watcher() {
    {
      MutexLock lock(&mutex_);
      over_ = true;
    }
    woken_.NotifyAll();
    thread_.join();
  }

  void Add(std::shared_ptr<Port> port) {
    MutexLock lock(&mutex_);
    ports_.push_back(std::move(port));
  }
  void Remove(const std::shared_ptr<Port>& port) {
    MutexLock lock(&mutex_);
    ports_.erase(std::find(ports_.begin(), ports_.end(), port));
  }

 private:
  // Of one server; the thread's own.
  struct Watched {
    int64_t failed = 0;
    absl::Time look_until = absl::InfinitePast();
    absl::Time look_again = absl::InfinitePast();
    std::map<int, ResetJudge> judges;  // by the port
  };

  void Run() {
    while (true) {
      std::vector<std::shared_ptr<Port>> ports;
      {
        MutexLock lock(&mutex_);
        if (woken_.WaitFor(&mutex_, kPeriod, [this] { return over_; })) return;
        ports = ports_;
      }
      std::map<int64_t, Watched> next;
      for (const auto& server : grpc_counts::ListServers()) {
        Watched& watched = next[server.id] = std::move(watched_[server.id]);
        if (IsTimeFor(server, &watched)) Look(server, ports, &watched);
      }
      watched_ = std::move(next);
    }
  }

  static bool IsTimeFor(const grpc_counts::Server& server, Watched* watched) {
    const absl::Time now = Clock::Real()->Now();
    const int64_t failed =
        server.failed - std::exchange(watched->failed, server.failed);
    if (failed >= kFewFailures) watched->look_until = now + kLooksOn;
    return now <= watched->look_until && now >= watched->look_again;
  }

  void Look(const grpc_counts::Server& server,
            const std::vector<std::shared_ptr<Port>>& ports, Watched* watched) {
    const absl::Time begun = Clock::Real()->Now();
    std::map<int, std::vector<grpc_counts::Connection>> by_port;
    for (auto& connection : grpc_counts::ListConnections(server.id)) {
      by_port[connection.local.port].push_back(std::move(connection));
    }
    for (const auto& port : ports) {
      const auto found = by_port.find(port->number);
      if (found == by_port.end()) continue;
      ResetJudge::Limits limits;
      limits.streams = port->streams;
      ResetJudge& judge =
          watched->judges.try_emplace(port->number, limits).first->second;
      std::vector<grpc_counts::Connection> guilty;
      for (const size_t i : judge.Judge(server, found->second, begun)) {
        guilty.push_back(found->second[i]);
      }
      for (const auto& ended : grpc_counts::End(guilty)) {
        ++port->ended;
        Log(ended);
      }
    }
    const absl::Time now = Clock::Real()->Now();
    watched->look_again = now + kRest * (now - begun);
  }

  void Log(const grpc_counts::Connection& connection) {
    const std::string peer = grpc_counts::TextOf(connection.remote);
    ended_.Line(HostOfPeer(peer),
                {{"peer", peer},
                 {"reason", absl::StrCat("it begins calls and resets them: ",
                                         connection.begun - connection.answered,
                                         " of its ", connection.begun,
                                         " calls were not answered")}});
  }

  Mutex mutex_;
  CondVar woken_;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Port>> ports_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Watched> watched_;  // by the server's id; the thread's own
  LogRate ended_{"connection_ended"};
  std::thread thread_;
};

ResetWatch::ResetWatch(int port, int streams)
    : port_(std::make_shared<Port>()), watcher_(Watcher::Get()) {
  port_->number = port;
  port_->streams = streams;
  watcher_->Add(port_);
}

ResetWatch::~ResetWatch() { watcher_->Remove(port_); }

int64_t ResetWatch::ended() const { return port_->ended; }

}  // namespace coxswain
