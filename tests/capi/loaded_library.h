#ifndef COXSWAIN_TESTS_CAPI_LOADED_LIBRARY_H_
#define COXSWAIN_TESTS_CAPI_LOADED_LIBRARY_H_

#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capi/coxswain.h"
#include "gtest/gtest.h"

// The tests load the library as a program in another language does, and have
// nothing of it linked: two copies of its messages cannot be in one process
// (docs/c-api.md). So they also start processes by themselves.
namespace coxswain::capi_test {

// clang-format off
#define COXSWAIN_CAPI_FUNCTIONS(X)                                            \
  X(cx_abi_version) X(cx_all_gather) X(cx_all_reduce) X(cx_announce)          \
  X(cx_barrier) X(cx_broadcast) X(cx_cancel) X(cx_canonical_hook)             \
  X(cx_checkpoint_at) X(cx_checkpoint_find) X(cx_checkpoint_hook)             \
  X(cx_checkpoint_load) X(cx_checkpoint_piece) X(cx_checkpoint_release)       \
  X(cx_checkpoint_save) X(cx_checkpoint_saved) X(cx_close) X(cx_configure)    \
  X(cx_decide) X(cx_exchange_bucket) X(cx_exchange_open) X(cx_exchange_wait)  \
  X(cx_grant) X(cx_hook_fail) X(cx_hook_load) X(cx_hook_recover)              \
  X(cx_hook_register) X(cx_hook_release) X(cx_hook_save) X(cx_hooks)          \
  X(cx_hooks_end) X(cx_info) X(cx_join) X(cx_last_error_code)                 \
  X(cx_last_error_kind) X(cx_last_error_message) X(cx_last_error_ranks)       \
  X(cx_leave) X(cx_member) X(cx_newcomer_finish) X(cx_newcomer_listen)        \
  X(cx_next_event) X(cx_note_micro_batch) X(cx_plan) X(cx_rejoin)             \
  X(cx_report_progress) X(cx_report_wait) X(cx_request) X(cx_set_background)  \
  X(cx_set_interrupt) X(cx_source_averages) X(cx_source_drop)                 \
  X(cx_source_open) X(cx_source_step) X(cx_source_wants) X(cx_status)         \
  X(cx_store_add) X(cx_store_compare_set) X(cx_store_count_keys)              \
  X(cx_store_delete) X(cx_store_get) X(cx_store_set) X(cx_store_wait)         \
  X(cx_version) X(cx_wait)
// clang-format on

inline constexpr char kLibrary[] = "capi/libcoxswain_c.so";
inline constexpr char kCoxswain[] = "cli/coxswain";

// All functions of the header, by name.
struct LoadedLibrary {
#define COXSWAIN_CAPI_FIELD(name) decltype(&::name) name;
  COXSWAIN_CAPI_FUNCTIONS(COXSWAIN_CAPI_FIELD)
#undef COXSWAIN_CAPI_FIELD

  LoadedLibrary() {
    void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::abort();
    }
#define COXSWAIN_CAPI_FIND(name)                                  \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #name)); \
  if (name == nullptr) std::abort();
    COXSWAIN_CAPI_FUNCTIONS(COXSWAIN_CAPI_FIND)
#undef COXSWAIN_CAPI_FIND
  }

  static std::set<std::string> Names() {
    return {
#define COXSWAIN_CAPI_NAME(name) #name,
        COXSWAIN_CAPI_FUNCTIONS(COXSWAIN_CAPI_NAME)
#undef COXSWAIN_CAPI_NAME
    };
  }
};

inline const LoadedLibrary& Library() {
  static const LoadedLibrary* const library = new LoadedLibrary;
  return *library;
}

// A process, whose standard output is read. It dies with the test.
class Child {
 public:
  explicit Child(std::vector<std::string> command) {
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      // Files of this test alone.
      unsetenv("TEST_PREMATURE_EXIT_FILE");
      unsetenv("XML_OUTPUT_FILE");
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(ends[1]);
    out_ = fdopen(ends[0], "r");
  }
  ~Child() {
    kill(pid_, SIGKILL);
    Wait();
    std::fclose(out_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Returns the next line that contains `part`; empty: there is none.
  std::string LineWith(const std::string& part) {
    char line[4096];
    while (std::fgets(line, sizeof(line), out_) != nullptr) {
      if (std::string(line).find(part) != std::string::npos) return line;
    }
    return "";
  }

  // Returns its exit status, after its end.
  int Wait() {
    if (!waited_) waitpid(pid_, &status_, 0);
    waited_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }

 private:
  pid_t pid_ = 0;
  std::FILE* out_ = nullptr;
  bool waited_ = false;
  int status_ = 0;
};

// A coordinator, for the tests of this program. Made by the main thread: a
// child dies with the thread that has started it.
class StartedCoordinator : public testing::Environment {
 public:
  static const std::string& address() { return Address(); }

  void SetUp() override {
    // One that a test has started this program for.
    const char* const given = std::getenv("COXSWAIN_COORDINATOR");
    if (given != nullptr) {
      Address() = given;
      return;
    }
    process_ = Start(&Address());
  }
  void TearDown() override { process_.reset(); }

  // Starts one more, which lives as long as what this returns.
  static std::unique_ptr<Child> Start(std::string* address) {
    std::string folder = testing::TempDir() + "/capi-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) std::abort();
    auto process = std::make_unique<Child>(
        std::vector<std::string>{kCoxswain, "serve", "--listen", "127.0.0.1:0",
                                 "--state-dir", folder + "/state"});
    const std::string greeting = "listening on ";
    std::string line = process->LineWith(greeting);
    line = line.substr(line.find(greeting) + greeting.size());
    *address = line.substr(0, line.find_first_of(" \n"));
    return process;
  }

 private:
  static std::string& Address() {
    static auto* const address = new std::string;
    return *address;
  }

  std::unique_ptr<Child> process_;
};

inline testing::Environment* const kCoordinator =
    testing::AddGlobalTestEnvironment(new StartedCoordinator);

template <typename T>
T Init() {
  T value{};
  value.size = sizeof(value);
  return value;
}

inline std::string Message() { return Library().cx_last_error_message(); }

inline std::vector<int32_t> Ranks() {
  std::vector<int32_t> ranks(Library().cx_last_error_ranks(nullptr, 0));
  Library().cx_last_error_ranks(ranks.data(), ranks.size());
  return ranks;
}

// Waits in slices.
inline cx_code InSlices(const std::function<cx_code(cx_call*)>& function) {
  cx_call call = 0;
  cx_code code = function(&call);
  while (code == CX_AGAIN) code = Library().cx_wait(&call);
  EXPECT_EQ(call, 0u);
  return code;
}

inline cx_join_options OptionsOf(const char* job, int slot, int world_size) {
  auto options = Init<cx_join_options>();
  options.flags = CX_JOIN_NO_ENVIRONMENT;
  options.coordinator = StartedCoordinator::address().c_str();
  options.job = job;
  options.node = "host-a";
  options.slot = slot;
  options.world_size = world_size;
  options.join_timeout_ms = 30000;
  options.collective_timeout_ms = 30000;
  return options;
}

// Runs `work(i)` for i below `count`, each in a thread, to their ends.
inline void Together(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

// The sessions of a job, by rank, each of which has a thread of its own when
// they do something together. Closed at the end.
class Job {
 public:
  explicit Job(int count, const char* plan = "") : sessions_(count) {
    const std::string name =
        testing::UnitTest::GetInstance()->current_test_info()->name();
    // A test that runs several times has a job each time.
    name_ = name.substr(0, name.find('/')) + "-" + std::to_string(++number);
    Together(count, [&](int slot) {
      cx_join_options options = OptionsOf(name_.c_str(), slot, count);
      options.plan = plan;
      cx_session session = 0;
      ASSERT_EQ(Library().cx_join(&options, &session, nullptr), CX_OK)
          << Message();
      auto info = Init<cx_session_info>();
      ASSERT_EQ(Library().cx_info(session, &info), CX_OK);
      EXPECT_EQ(info.job, name_);
      sessions_[static_cast<size_t>(info.rank)] = session;
    });
  }
  ~Job() {
    for (const cx_session session : sessions_) Library().cx_close(session);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& name() const { return name_; }
  cx_session operator[](int rank) const {
    return sessions_[static_cast<size_t>(rank)];
  }
  void Each(const std::function<void(int rank, cx_session session)>& work) {
    Together(static_cast<int>(sessions_.size()),
             [&](int rank) { work(rank, (*this)[rank]); });
  }
  void Leave() {
    Each([](int, cx_session session) {
      EXPECT_EQ(Library().cx_leave(session, "done", 0, nullptr), CX_OK)
          << Message();
    });
  }

 private:
  static inline int number = 0;
  std::string name_;
  std::vector<cx_session> sessions_;
};

}  // namespace coxswain::capi_test

#endif  // COXSWAIN_TESTS_CAPI_LOADED_LIBRARY_H_
