// Coxswain's C interface: C99, for programs and languages that the C++ library
// does not reach. docs/c-api.md has an example and the rules of the ABI.
//
// WHO CALLS IT. A worker of a job: a process that `coxswain run` has started,
// or that names its coordinator itself. It joins, exchanges data and decisions
// with the other ranks, leaves, and closes its session:
//
//   cx_join, then for each step cx_announce, cx_grant, the exchange and
//   cx_decide; at the end cx_leave and cx_close
//
// A session is of one generation: when a member is lost the generation ends,
// and with it every call that waits; cx_rejoin gives the session of the next
// one. A session that is open when the process
// exits is closed as failed. In a process forked from the one that has joined,
// all functions with a session fail with CX_FAILED_PRECONDITION and touch
// nothing.
//
// THREADS. Every function may be called from any thread, with these limits: the
// announce, grant and decide of one stream follow each other, and so do the
// collectives of a session, in the same order on all ranks. The library calls
// functions of a cx_hook and of cx_newcomer_calls on threads of its own, and
// other functions of the program only on a thread that has called the library.
//
// ERRORS. Functions return a cx_code. For each but CX_OK and CX_AGAIN the
// thread keeps a message, the ranks that it is about and a cx_error_kind until
// its next failure (cx_last_error_message, ...). A message states what
// happened, to whom, and what to do. Wrong arguments are CX_INVALID_ARGUMENT,
// and never end the process: NULL where there must be something, a handle that
// is not open, a size that makes no sense. No C++ exception leaves a function.
//
// WAITING. A function that may wait for the coordinator or other ranks ends
// with a parameter `cx_call* call`.
//   With NULL it returns when it is done. If the thread has an interrupt
// function (cx_set_interrupt), that is called about every 50 ms meanwhile, and
// can end the wait.
//   With a place for a cx_call it sets that to 0 first, and returns within
// 100 ms, or a little later on a busy machine. CX_AGAIN: it goes on, and
// `*call` stands for it; cx_wait waits for another 100 ms. Until cx_wait
// returns something else, or cx_cancel returns, whatever results and data point
// to must stay valid. Other arguments are copied.
//   What is cancelled is not undone. A barrier counts this rank as arrived
// until its timeout, and a change of the store may still take effect, later. A
// grant, decision or collective ends its stream, or the collectives of its
// session. Each wait that is cancelled keeps a thread of the library until its
// own timeout, or until the session ends.
//
// STRINGS are UTF-8 and end with a zero. Those that a function returns, also in
// a struct, stay valid until the thread calls a function with the same kind of
// result again; so do values of the store. A text that is an argument may be
// NULL where its comment gives nothing but its purpose, such as a reason: that
// is the same as "". One that is not UTF-8 is CX_INVALID_ARGUMENT; paths of
// files may be anything.
//
// STRUCTS begin with their size, which the caller sets, to that of a struct
// that is otherwise zero (CX_INIT does both). Fields are only ever added at the
// end. A caller that knows fewer of them gets the defaults, which are zero; one
// that knows more must leave them zero.
//
// UNITS. Times are milliseconds; ranks, steps and micro-batches count from 0;
// counts of data are elements, and sizes bytes.
#ifndef COXSWAIN_CAPI_COXSWAIN_H_
#define COXSWAIN_CAPI_COXSWAIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CX_API __attribute__((visibility("default")))

// Programs work with any library of the same major number, and a minor number
// that is not below theirs.
#define CX_ABI_MAJOR 1
#define CX_ABI_MINOR 6

// Returns major << 16 | minor of the library.
CX_API int32_t cx_abi_version(void);
// Returns the version of Coxswain, such as "0.1.0".
CX_API const char* cx_version(void);

// Initialises a struct with its size and defaults, in C, as in
//   cx_vote vote = CX_INIT(cx_vote);
// In C++: cx_vote vote{}; vote.size = sizeof(vote);
#ifndef __cplusplus
#define CX_INIT(type) \
  { .size = sizeof(type) }
#endif

// ---- errors ----

// Those of gRPC and Abseil, and CX_AGAIN.
typedef int32_t cx_code;
enum {
  CX_OK = 0,
  CX_CANCELLED = 1,  // by the program; or the session was left
  CX_UNKNOWN = 2,
  CX_INVALID_ARGUMENT = 3,
  CX_DEADLINE_EXCEEDED = 4,  // the message names what was waited for
  CX_NOT_FOUND = 5,
  CX_ALREADY_EXISTS = 6,
  CX_PERMISSION_DENIED = 7,
  CX_RESOURCE_EXHAUSTED = 8,
  CX_FAILED_PRECONDITION = 9,  // not now; at cx_join: manifests differ
  CX_ABORTED = 10,             // the generation has ended, as when ranks
                               // differ: the message explains it
  CX_OUT_OF_RANGE = 11,        // there are no more
  CX_UNIMPLEMENTED = 12,
  CX_INTERNAL = 13,
  CX_UNAVAILABLE = 14,  // the coordinator or a peer cannot be reached
  CX_DATA_LOSS = 15,
  CX_UNAUTHENTICATED = 16,
  CX_AGAIN = 100  // not done: see WAITING
};

// What is known of an error besides its text.
typedef int32_t cx_error_kind;
enum {
  CX_ERROR_OTHER = 0,
  CX_ERROR_RANKS_DIFFER = 1,      // ranks did different things in a step, or
                                  // nothing: those that are named
  CX_ERROR_MEMBER_LOST = 2,       // the rank that is named
  CX_ERROR_MEMBERS_MISSING = 3,   // those that are named, if they have ranks
  CX_ERROR_MANIFESTS_DIFFER = 4,  // at cx_join
  CX_ERROR_JOB_FINISHED = 5,      // it ended cleanly: nothing is wrong
  CX_ERROR_STALE = 6              // the coordinator has given this worker up
};

CX_API cx_code cx_last_error_code(void);
CX_API const char* cx_last_error_message(void);
CX_API cx_error_kind cx_last_error_kind(void);
// Returns how many ranks the error is about, and copies the first `capacity`.
CX_API size_t cx_last_error_ranks(int32_t* ranks, size_t capacity);

// ---- waiting ----

// A call that is not done; 0 is none.
typedef uint64_t cx_call;

// Waits for 100 ms at most. CX_AGAIN: go on. Otherwise the call is over, with
// this result, and `*call` is 0. From any thread, but one at a time.
CX_API cx_code cx_wait(cx_call* call);
// Cancels a call, and sets `*call` to 0; no result is written after that. Not
// while another thread is in cx_wait for the same call: that may write results
// once this has returned. A grant, decision or collective that is cancelled
// makes its stream, or the collectives of its session, fail from then on: other
// ranks may have gone ahead. Waits where memory of the caller's is in use,
// until that has ended; and 2 s at most where a join has just been completed,
// which is left.
CX_API cx_code cx_cancel(cx_call* call);

// Called on the thread that waits, about every 50 ms. Anything but 0 ends the
// wait: the function returns CX_CANCELLED, as after cx_cancel. It may call the
// library, and is not called for the waits within.
typedef int32_t (*cx_interrupt)(void* data);
// Sets the function of this thread; NULL: none.
CX_API void cx_set_interrupt(cx_interrupt function, void* data);

// Marks the waits that this thread begins from now on. Anything but 0: they are
// beside training, which goes on on other threads, and do not make this worker
// one that waits for others (plans with a stall_timeout). Returns what it was,
// at first 0.
CX_API int32_t cx_set_background(int32_t background);

// ---- joining and leaving ----

// A session that is open; 0 is none.
typedef uint64_t cx_session;
// A worker that listens for the state of members; 0 is none.
typedef uint64_t cx_newcomer;

typedef int32_t cx_dtype;
enum {
  CX_FLOAT32 = 0,
  CX_FLOAT64 = 1,
  CX_FLOAT16 = 2,
  CX_BFLOAT16 = 3,
  CX_INT8 = 4,
  CX_INT32 = 5,
  CX_INT64 = 6,
  CX_UINT8 = 7
};

// A name and a value.
typedef struct cx_setting {
  const char* name;
  const char* value;
} cx_setting;

// A parameter of the model: its name, and a shape of `ndim` extents. Its
// gradient lies row-major.
typedef struct cx_parameter {
  const char* name;
  const int64_t* shape;
  int32_t ndim;
  cx_dtype dtype;
} cx_parameter;

// Flags of cx_join_options.
enum {
  CX_JOIN_NO_ENVIRONMENT = 1,  // no variable is read
  CX_JOIN_PLAIN_DATA = 2       // what ranks exchange is not encrypted, also
                               // where the coordinator is: all ranks or none
                               // (COXSWAIN_PLAIN_DATA). Since 1.3
};

// Who this worker is, and what it asks for. Each field that is NULL or 0 comes
// from the environment, where `coxswain run` sets it: the variable is named
// beside the field, and in errors. COXSWAIN_MESH, the job's mesh, has no field.
typedef struct cx_join_options {
  size_t size;
  uint64_t flags;           // CX_JOIN_*
  const char* coordinator;  // HOST:PORT (COXSWAIN_COORDINATOR); needed
  const char* job;          // (COXSWAIN_JOB); needed
  const char* node;         // name of this host (COXSWAIN_NODE); with it ...
  int32_t slot;             // ... the worker's number on it
                            // (COXSWAIN_LOCAL_RANK). An error without `node`
  int32_t world_size;       // workers of the job (COXSWAIN_WORLD_SIZE)
  int32_t min_world_size;   // as few as it may run with
                            // (COXSWAIN_MIN_WORLD_SIZE)
  int32_t reserved;
  int64_t attempt;                // start of the whole job (COXSWAIN_ATTEMPT)
  const char* address;            // where data connections listen
                                  // (COXSWAIN_BIND_ADDRESS)
  const char* backend;            // (COXSWAIN_BACKEND)
  const char* tls_ca;             // PEM file (COXSWAIN_TLS_CA)
  const char* tls_cert;           // likewise (COXSWAIN_TLS_CERT)
  const char* tls_key;            // likewise (COXSWAIN_TLS_KEY)
  const char* token_file;         // (COXSWAIN_TOKEN_FILE)
  int64_t join_timeout_ms;        // (COXSWAIN_JOIN_TIMEOUT); 5 minutes
  int64_t collective_timeout_ms;  // of connecting and of a collective; 5
                                  // minutes

  // What all ranks must have in common: the coordinator compares it.
  //
  // NAME=VALUE words with spaces between them, as `coxswain plan set` takes
  // them: "accumulation=4 hook=powersgd(rank=4) commit_vote=true". A hook is a
  // spec in any of its forms.
  const char* plan;
  const cx_setting* settings;
  size_t setting_count;
  const cx_parameter* parameters;  // may be none: cx_configure
  size_t parameter_count;
  cx_newcomer newcomer;  // of cx_newcomer_listen; 0: this worker takes no state
                         // while it waits. Since 1.6
} cx_join_options;

// Joins, and waits until all members have. `options` may be NULL: all of it
// comes from the environment. Sets `*session`, to 0 unless it returns CX_OK.
//   CX_DEADLINE_EXCEEDED    the coordinator did not answer, or members are
//                           missing, which the message names
//   CX_FAILED_PRECONDITION  the members' plans, settings or parameters differ
//   CX_ALREADY_EXISTS       a worker of this node and slot is in the job, or
//                           was evicted a moment ago
//   CX_CANCELLED            cancelled; the coordinator forgets this worker,
//                           a moment later. Or the job has ended cleanly:
//                           CX_ERROR_JOB_FINISHED
CX_API cx_code cx_join(const cx_join_options* options, cx_session* session,
                       cx_call* call);

// Joins the generation after that of `session`, as the same worker with the
// same options, and waits as cx_join does: once that generation has ended
// (cx_status), or is to end after a step (cx_decision.regroup), or to make it
// end; it is left cleanly. Sets `*next`, to 0 unless it returns CX_OK.
// `session` stays open for cx_close, which must not come before this has
// returned: it is of no other use.
//   CX_FAILED_PRECONDITION  `session` was left by cx_leave; or as cx_join
//   CX_ALREADY_EXISTS       another process has taken this worker's place
//   CX_CANCELLED            cancelled: `session` cannot join again. Or the job
//                           has ended cleanly: CX_ERROR_JOB_FINISHED
// Other errors as cx_join. Since 1.1.
CX_API cx_code cx_rejoin(cx_session session, cx_session* next, cx_call* call);

// Sets the parameters that gradients are exchanged of, in their order, where
// they are known only after joining. Each ticket from then on carries a hash of
// them, which all ranks must have in common.
CX_API cx_code cx_configure(cx_session session, const cx_parameter* parameters,
                            size_t parameter_count);

// Ends the membership. `failed` other than 0 makes the other ranks stop as
// well, with this reason, and waits 5 s at most for the coordinator; otherwise
// they go on without this one, and it waits 30 s at most by default. Later
// calls do nothing. A cx_rejoin of another thread returns CX_CANCELLED.
CX_API cx_code cx_leave(cx_session session, const char* reason, int32_t failed,
                        cx_call* call);

// Forgets the session, which is left as failed if it was not left: that waits
// 5 s at most for the coordinator, and has no `call`. Use cx_leave before it to
// wait in slices. Calls that wait end. Afterwards the handle is not open any
// more. Exchanges are aborted, and waited for until none uses its buckets.
// CX_DEADLINE_EXCEEDED: one still does, the collectives' timeout and 10 s
// later.
CX_API cx_code cx_close(cx_session session);

typedef struct cx_session_info {
  size_t size;
  int32_t rank;
  int32_t world_size;
  int32_t local_rank;
  int32_t reserved;
  int64_t generation;
  const char* job;
} cx_session_info;
CX_API cx_code cx_info(cx_session session, cx_session_info* info);

typedef struct cx_member_info {
  size_t size;
  int32_t rank;
  int32_t local_rank;
  const char* node;
  const char* host;
  const char* address;  // where its data connections listen
  int32_t slot;
  int32_t reserved;
} cx_member_info;
CX_API cx_code cx_member(cx_session session, int32_t rank,
                         cx_member_info* member, cx_call* call);

// Returns CX_OK while the generation lasts; then why it ended: CX_ABORTED, or
// CX_CANCELLED after cx_leave. Never waits.
CX_API cx_code cx_status(cx_session session);

typedef int32_t cx_event_kind;
enum {
  CX_EVENT_JOINED = 0,
  CX_EVENT_COORDINATOR_LOST = 1,  // training goes on meanwhile
  CX_EVENT_REATTACHED = 2,
  CX_EVENT_MEMBER_LEFT = 3,  // `rank`, cleanly
  CX_EVENT_PLAN_CHANGED = 4,
  CX_EVENT_REGROUP = 5,  // the generation ends after this step
  CX_EVENT_WARNING = 6,
  CX_EVENT_GENERATION_ENDED = 7  // `rank`: who was lost, or -1. The last one
};

typedef struct cx_event {
  size_t size;
  cx_event_kind kind;
  int32_t rank;  // -1: none
  int64_t generation;
  int64_t term;
  const char* text;  // a sentence
} cx_event;

// Returns what happened to the session next, for one reader. 256 events are
// kept for it: beyond that the oldest are dropped, without a notice.
// CX_DEADLINE_EXCEEDED: nothing within `timeout_ms` (0: does not wait);
// CX_OUT_OF_RANGE: there are no more.
CX_API cx_code cx_next_event(cx_session session, int64_t timeout_ms,
                             cx_event* event, cx_call* call);

// Reports how many optimizer steps this worker has taken, for status and logs.
CX_API cx_code cx_report_progress(cx_session session, int64_t steps);
// Reports whether this worker waits for others in what Coxswain does not
// exchange, such as a collective of torch's: plans with a stall_timeout ask.
CX_API cx_code cx_report_wait(cx_session session, int32_t waits);
// Counts a micro-batch as progress.
CX_API cx_code cx_note_micro_batch(cx_session session);

// Waits at the coordinator until all ranks have called it with this tag.
// CX_DEADLINE_EXCEEDED names those that have not. With `timeout_ms` 0 it does
// not wait: it is CX_OK for the rank that comes last.
CX_API cx_code cx_barrier(cx_session session, const char* tag,
                          int64_t timeout_ms, cx_call* call);

// ---- the coordinator's store ----

// Small values of the generation, shared by its ranks: keys of at most 1 KiB,
// values of at most 1 MiB, deleted when it ends.

CX_API cx_code cx_store_set(cx_session session, const char* key,
                            const void* value, size_t value_size,
                            cx_call* call);

// Waits until the key exists. CX_NOT_FOUND: it does not, and `timeout_ms` is 0;
// CX_DEADLINE_EXCEEDED: it did not come in time.
CX_API cx_code cx_store_get(cx_session session, const char* key,
                            int64_t timeout_ms, const void** value,
                            size_t* value_size, cx_call* call);

// Waits until all keys exist. Errors as cx_store_get.
CX_API cx_code cx_store_wait(cx_session session, const char* const* keys,
                             size_t key_count, int64_t timeout_ms,
                             cx_call* call);

// Adds to a decimal counter, which begins with 0; `sum` may be NULL.
CX_API cx_code cx_store_add(cx_session session, const char* key, int64_t amount,
                            int64_t* sum, cx_call* call);

// Sets `desired` if the value is `expected`, or if there is none and `expected`
// is empty. Returns the value that stands there afterwards, and whether it was
// set; each of the three places may be NULL. CX_NOT_FOUND: there is none, and
// `expected` is not empty.
CX_API cx_code cx_store_compare_set(cx_session session, const char* key,
                                    const void* expected, size_t expected_size,
                                    const void* desired, size_t desired_size,
                                    const void** value, size_t* value_size,
                                    int32_t* swapped, cx_call* call);

// Returns whether there was such a key; `existed` may be NULL.
CX_API cx_code cx_store_delete(cx_session session, const char* key,
                               int32_t* existed, cx_call* call);

// Returns how many keys begin with `prefix`; NULL is "". Since minor 2.
CX_API cx_code cx_store_count_keys(cx_session session, const char* prefix,
                                   int64_t* count, cx_call* call);

// ---- the schedule ----

// What a rank is about to exchange: docs/schedule.md.
enum {
  CX_TICKET_END_OF_DATA = 1,  // the end of the data has cut this window short
  CX_TICKET_WEIGHT = 2,       // `weight` counts; else it is micro_batches
  CX_TICKET_CHECKSUM = 4,     // `checksum` counts
  CX_TICKET_REPLICATED_CHECKSUM = 8  // `replicated_checksum` counts
};
typedef struct cx_ticket {
  size_t size;
  uint64_t flags;
  const char* stream;     // NULL: "train", whose decisions change the plan
  int64_t step;           // the same on all ranks
  int32_t micro_batches;  // that are summed up in this exchange; 0: this rank
                          // is out of data, which the plan must allow
  int32_t micro;          // with sync_each_batch: its place in the window
  int32_t window;         // how many were planned; 0: as the plan has it
  int32_t reserved;
  double weight;      // such as the number of tokens
  const char* hook;   // canonical (cx_canonical_hook), because texts are
                      // compared; NULL: the plan's
  uint64_t layout;    // hash of what is exchanged; 0: that of cx_configure, or
                      // of cx_exchange_open
  uint64_t digest;    // hash of what was exchanged before; 0: of what the
                      // stream's hook has, after cx_exchange_open
  uint64_t checksum;  // of the parameters, before this step
  const char* skip;   // not empty: all are to skip this step, and why
  uint64_t pipeline;  // hash of the schedule that the window's pipeline runs,
                      // compared among ranks of one data index; 0: none
  uint64_t replicated_checksum;  // of the parameters that each rank along tp
                                 // has whole, before this step
} cx_ticket;

// Announces the exchange that begins. Does not wait.
CX_API cx_code cx_announce(cx_session session, const cx_ticket* ticket);

// With enforcement=strict, waits until all ranks have announced the same;
// otherwise returns at once. After cx_announce, before the exchange. Cancelled,
// it makes the stream fail from then on.
CX_API cx_code cx_grant(cx_session session, const char* stream, cx_call* call);

typedef struct cx_vote {
  size_t size;
  int32_t refuse;  // not 0: this rank votes to skip the step, ...
  int32_t reserved;
  const char* reason;  // ... and why. Counts with the setting commit_vote
} cx_vote;

typedef struct cx_decision {
  size_t size;
  int32_t commit;          // 0: all ranks skip the step
  int32_t plan_changed;    // not 0: the plan below is another than before
  const char* reason;      // why it is skipped: which ranks asked, and why
  const char* stop;        // not "": all stop after this step, and why
  const char* regroup;     // not "": the generation ends after it, and why
  const char* checkpoint;  // not "": all save their state after it, and why
  int64_t plan_version;    // in force from the next step on
  int32_t accumulation;    // micro-batches of this rank in its windows
  int32_t reserved;
  const char* hook;  // as in cx_plan_info
} cx_decision;

// Waits for what all ranks decide about the exchange that was announced; after
// it, before the optimizer step. `vote` may be NULL: this rank is for it. An
// error with the kind CX_ERROR_RANKS_DIFFER names the ranks that did something
// else, or nothing.
CX_API cx_code cx_decide(cx_session session, const char* stream,
                         const cx_vote* vote, cx_decision* decision,
                         cx_call* call);

enum {
  CX_REQUEST_STOP = 0,       // all stop after the next decision
  CX_REQUEST_DRAIN = 1,      // the others go on without this rank after it
  CX_REQUEST_CHECKPOINT = 2  // all save their state after it
};
// Asks all ranks for it, from the next ticket or vote on; the decision has the
// outcome.
CX_API cx_code cx_request(cx_session session, int32_t request,
                          const char* reason);

enum {
  CX_PLAN_SYNC_EACH_BATCH = 1,
  CX_PLAN_COMMIT_VOTE = 2,
  CX_PLAN_STRICT = 4,       // cx_grant may wait
  CX_PLAN_NOT_ENFORCED = 8  // enforcement=off: each rank decides alone
};
// The plan that the next ticket follows: the one that was in force at cx_join,
// or that a decision of the stream "train" has brought.
typedef struct cx_plan_info {
  size_t size;
  uint64_t flags;
  int64_t version;
  int32_t accumulation;  // micro-batches of this rank in each window
  int32_t reserved;
  int64_t max_steps;            // optimizer steps of the training; 0: no bound
  int64_t progress_timeout_ms;  // how long a rank may make no progress
  const char* hook;             // canonical spec
  const char* words;            // all of it, as NAME=VALUE words
} cx_plan_info;
CX_API cx_code cx_plan(cx_session session, cx_plan_info* plan);

// ---- hooks ----

enum {
  CX_HOOK_SPEC = 0,  // such as "fp16(powersgd(rank=4))"
  CX_HOOK_YAML = 1   // YAML or JSON, also in Accelerate's words: comm_hook,
                     // comm_wrapper, comm_state_option
};
// Returns the canonical spec of a hook. Fails with CX_INVALID_ARGUMENT, naming
// what is wrong with it and what is valid.
CX_API cx_code cx_canonical_hook(const char* text, int32_t form,
                                 const char** spec);
// Returns all hooks with their options, as `coxswain hooks --json` does.
CX_API cx_code cx_hooks(const char** json);

// ---- gradients, by the plan's hook, in memory of the CPU ----

// For frameworks that divide gradients into buckets themselves, and hand these
// over while later ones are computed. Since 1.3. Of each step:
//
//   cx_announce, cx_grant, cx_exchange_bucket for each bucket,
//   cx_exchange_wait, cx_decide
//
// The stream's hook is the one that the plan names. It averages the buckets
// over the ranks in place, as a thread of the library, and cx_decide makes its
// step count, or undoes it. Where a decision brings another hook, the ranks
// change over to that with their next exchange. After an error in between, the
// stream exchanges nothing more: leave the session as failed.

// Makes the hook of a stream, for these parameters, and connects its ranks. All
// ranks call it, in the same order for several streams. Called again, between
// steps, it sets other parameters: the hook goes on with what it remembers of
// those that stay. CX_INVALID_ARGUMENT: the plan's hook is not for these
// parameters, or none that averages gradients.
CX_API cx_code cx_exchange_open(cx_session session, const char* stream,
                                const cx_parameter* parameters,
                                size_t parameter_count, cx_call* call);

// Where the gradient of a parameter lies in its bucket, in elements.
typedef struct cx_slot {
  int32_t parameter;  // its place in what cx_exchange_open was given
  int32_t reserved;
  int64_t offset;
  int64_t count;
} cx_slot;

// Some bytes.
typedef struct cx_bytes {
  const void* data;
  size_t size;
} cx_bytes;

typedef struct cx_bucket {
  size_t size;
  int32_t index;  // 0, 1, ... within a step
  int32_t last;   // not 0: there are no more in this step
  void* data;     // the gradients, one after the other, without gaps
  int64_t count;
  const cx_slot* slots;
  size_t slot_count;
  cx_dtype dtype;
  int32_t reserved;
} cx_bucket;
// Hands over the next bucket of a step, the same one on all ranks. Does not
// wait. Its data must stay valid until cx_exchange_wait has returned anything
// but CX_AGAIN, or cx_cancel has returned, or cx_close has, with CX_OK.
CX_API cx_code cx_exchange_bucket(cx_session session, const char* stream,
                                  const cx_bucket* bucket);
// Waits until all buckets of the step hold averages.
// CX_FAILED_PRECONDITION: the last one was not handed over.
CX_API cx_code cx_exchange_wait(cx_session session, const char* stream,
                                cx_call* call);

enum {
  // What this rank's hook has itself, as cx_hook_release returns it, for
  // cx_hook_recover. The other ranks need not save. Since 1.6.
  CX_HOOK_OWN = 2
};
// Return and set what a stream's hook remembers, such as error feedback,
// between steps. All ranks save together: each gets its part, or with `whole`
// other than 0 and CX_HOOK_OWN all of it. The parts of all ranks, or the whole,
// are loaded by each rank, of any number of ranks; it goes by the names of the
// parameters.
// What is saved stays valid until the next cx_hook_save or cx_announce of its
// stream, or cx_close.
// CX_FAILED_PRECONDITION: it is another hook's or another model's, or parts are
// missing; the hook stays as it was. CX_DATA_LOSS: the bytes are damaged.
CX_API cx_code cx_hook_save(cx_session session, const char* stream,
                            int32_t whole, const void** state,
                            size_t* state_size, cx_call* call);
CX_API cx_code cx_hook_load(cx_session session, const char* stream,
                            const cx_bytes* parts, size_t part_count);

// For processes that outlive a generation, by cx_rejoin: what a rank's hook
// remembers goes along.
//
// Returns what this rank's hook of a stream remembers, its own errors among
// it, at the end of a generation, however that has ended, and before cx_close.
// The stream exchanges nothing after it. `undo_last` other than 0: the program
// has not taken the step that was decided last, which is undone in the hook,
// too. What is returned stays valid until cx_close. CX_DEADLINE_EXCEEDED: an
// exchange that was under way has not ended.
CX_API cx_code cx_hook_release(cx_session session, const char* stream,
                               int32_t undo_last, const void** state,
                               size_t* state_size, cx_call* call);

enum {
  // The program's own state is that of another rank, which was ahead.
  CX_HOOK_BEHIND = 1,
  // This rank has taken part in all steps that the ranks go on from.
  CX_HOOK_TOOK_PART = 2
};
// What a rank brings to a generation.
typedef struct cx_hook_standing {
  size_t size;
  uint64_t flags;
  // What cx_hook_release returned in the last generation that the hook went on
  // in, or cx_hook_save for CX_HOOK_OWN at a step that all ranks go back to.
  const void* state;
  size_t state_size;   // 0: there was none
  int32_t world_size;  // of that one
  int32_t reserved;
} cx_hook_standing;
// Has the hook of a stream go on in a new generation, with as many ranks or
// others: what all have alike is that of one rank, and each keeps its own
// errors, so scaled that they keep their weight in the mean. All ranks call it
// together, after cx_exchange_open and before the first step; those that are
// new without a state. `*error_scale` is what this rank's errors were
// multiplied by; 0: it begins without. Where the plan has another hook by now,
// which cannot or must not go on (hook_state=reset), that begins anew, which is
// logged. docs/elastic.md.
CX_API cx_code cx_hook_recover(cx_session session, const char* stream,
                               const cx_hook_standing* standing,
                               double* error_scale, cx_call* call);

// ---- a hook of the program's own: since 1.4 ----

// Functions that average a bucket over the ranks. Once registered the hook can
// be named in specs and plans like any other, with its options, and be wrapped:
// "fp16(mine(rank=2))". For the gradients of cx_exchange_bucket. docs/c-api.md
// has an example.
//
// Each hook that the library makes has functions called by one thread at a
// time, which may be one of the library's; those of several hooks at the same
// time. They may wait for nothing but what the program itself does, throw
// nothing, and call of this header only cx_hook_fail and what needs no session.
// One that returns another code than CX_OK ends the exchange with an error, of
// the code and the text that it has given to cx_hook_fail: the stream exchanges
// nothing more, and the other ranks notice it when this one leaves as failed.
//
// All ranks must do the same: the same collectives in the same order, so that
// all have the same bits in the end. What that depends on, such as the number
// of steps or whether an average is finite, must be known alike on all of them.

enum {
  CX_OPTION_INT = 0,
  CX_OPTION_FLOAT = 1,
  CX_OPTION_BOOL = 2,
  CX_OPTION_TEXT = 3  // of letters, digits, '_', '.', '+' and '-'
};
typedef struct cx_hook_option {
  const char* name;
  const char* default_value;  // as in a spec
  const char* help;           // one line
  int32_t type;               // CX_OPTION_*
  int32_t reserved;
} cx_hook_option;

enum {
  CX_NO_COLLECTIVE = 0,   // the average is in the bucket
  CX_ALL_REDUCE = 1,      // `data` in place, by `op`
  CX_BROADCAST = 2,       // `data` of the rank `root`, to all
  CX_ALL_GATHER = 3,      // `output` gets `data` of all ranks, by rank
  CX_REDUCE_SCATTER = 4,  // `output` gets its slice, by rank, of the sum
  CX_ALL_TO_ALL = 5       // slice r of `data` goes to rank r; `output` has as
                          // many elements
};
// What an exchange waits for next. All of it is zero, but for its size, when a
// function is to fill it.
typedef struct cx_collective {
  size_t size;
  int32_t kind;  // CX_NO_COLLECTIVE, ...
  int32_t op;    // CX_SUM, ... (below)
  int32_t root;
  cx_dtype dtype;  // of data and output
  void* data;
  int64_t count;
  void* output;
  int64_t output_count;
} cx_collective;

enum {
  CX_STATE_OWN = 1
};  // each rank has its own: floating point, such as an
    // error; a checkpoint has its mean over the ranks
// What a hook remembers of a parameter. Little-endian, row-major.
typedef struct cx_state_tensor {
  const char* kind;       // such as "error"; not "own_..."
  const char* parameter;  // its name; "" where it is of none
  const int64_t* shape;
  int32_t ndim;
  cx_dtype dtype;
  const void* data;
  uint64_t flags;  // CX_STATE_OWN; the same for all of one kind
} cx_state_tensor;

// The functions of a hook, in the order of their calls.

// Makes a hook of these options: all of them, with values as in a spec. Also
// called to check them, before anything is exchanged. `destroy` follows if it
// returns CX_OK.
typedef cx_code (*cx_make_fn)(void* data, const char* spec,
                              const cx_setting* options, size_t option_count,
                              void** hook);
// Sets the parameters and the number of ranks: first of all, and between steps
// where either or the buckets have changed.
typedef cx_code (*cx_configure_fn)(void* hook, const cx_parameter* parameters,
                                   size_t parameter_count, int32_t world_size);
// Begins the exchange of a bucket, whose memory holds the sum of this rank's
// micro-batches, and in the end the average over the ranks. It stays valid
// until `end`, which follows if this returns CX_OK. Several buckets are under
// way at a time, in an order that is the same on all ranks.
typedef cx_code (*cx_begin_fn)(void* hook, const cx_bucket* bucket,
                               int32_t rank, int32_t world_size,
                               void** exchange);
// Continues until a collective is needed, and fills that in; called again once
// it has ended well, for up to 1000 of them. Its memory stays valid until then,
// or `end`.
typedef cx_code (*cx_advance_fn)(void* exchange, cx_collective* next);
typedef void (*cx_end_fn)(void* exchange);
// The step counts: what it has left to remember becomes current.
typedef cx_code (*cx_commit_fn)(void* hook);
// The step is undone: the hook is as it was before.
typedef void (*cx_rollback_fn)(void* hook);
// Returns what the hook remembers, between steps: it stays valid until the next
// function of this hook. The same kinds, parameters and shapes on all ranks.
typedef cx_code (*cx_save_fn)(void* hook, const cx_state_tensor** tensors,
                              size_t* count);
// Takes over, and copies, what was saved on any number of ranks.
typedef cx_code (*cx_load_fn)(void* hook, const cx_state_tensor* tensors,
                              size_t count);
typedef void (*cx_destroy_fn)(void* hook);

typedef struct cx_hook {
  size_t size;
  const char* name;     // of letters, digits and '_'
  const char* help;     // one line
  const char* version;  // of the functions' code: compared over the ranks at
                        // cx_join
  const cx_hook_option* options;
  size_t option_count;
  void* data;  // for `make`
  cx_make_fn make;
  cx_configure_fn configure;  // may be NULL
  cx_begin_fn begin;
  cx_advance_fn advance;
  cx_end_fn end;
  cx_commit_fn commit;      // may be NULL
  cx_rollback_fn rollback;  // may be NULL
  cx_save_fn save;          // NULL: it remembers nothing
  cx_load_fn load;          // NULL only if `save` is
  cx_destroy_fn destroy;
} cx_hook;

// Registers a hook, for the rest of the process; what `hook` points to is
// copied, but for `data`. Before cx_join, on all ranks of a job.
// CX_ALREADY_EXISTS: there is one of that name; CX_FAILED_PRECONDITION: a
// session is open, whose ranks have compared their hooks already.
CX_API cx_code cx_hook_register(const cx_hook* hook);
// In a function of a hook, or of cx_newcomer_calls: sets the text of the error
// that it returns.
CX_API void cx_hook_fail(const char* message);
// Has no function of a hook called from now on, `destroy` and `end` neither,
// nor of cx_newcomer_calls, and waits until none runs, 10 s at most:
// CX_DEADLINE_EXCEEDED after that. For a language whose runtime ends before the
// process does. Exchanges fail then.
CX_API cx_code cx_hooks_end(void);

// ---- newcomers that take the state while they wait: since 1.6 ----

// A worker that is added to a job waits until the members regroup. Meanwhile it
// may take the state of these, which train on, and then the averages of each
// step, which it takes itself: at the regroup it has the members' bits. The
// state is what the steps of an optimizer change, and these act on each element
// alone. docs/elastic.md. In plain text: refused where ranks encrypt what they
// exchange, and in a job with a mesh, with CX_FAILED_PRECONDITION.

// Memory of the state, or of averages, that belongs to a parameter.
typedef struct cx_part {
  void* data;
  size_t size;
  int32_t parameter;  // the number of that one
  int32_t reserved;
} cx_part;

// A member's part. Without a source that is open, newcomers that decisions of
// this session name copy the state when the members regroup. Those of one
// session follow each other.
//
// Opens the source, once. `lineage` is the state's: a random number, made where
// training begins, and the same on all ranks. Newcomers have it in
// cx_caught_up. After a cx_rejoin that regroups, open it once the ranks have
// come to the same state: until then, or cx_close, the source of the session
// before sends what it has.
CX_API cx_code cx_source_open(cx_session session, int64_t lineage);

enum {
  CX_WANTS_STEP = 1,  // the averages of the step, and cx_source_step after it
  CX_WANTS_STATE = 2  // cx_source_step after it: one begins with the state
};
// Returns what newcomers want of the step under way: before the optimizer takes
// it, and again after it.
CX_API cx_code cx_source_wants(cx_session session, int32_t* wants);
// Copies this rank's share of the averages that the optimizer is about to use,
// in an order that all ranks have in common; `parameter` is not looked at.
CX_API cx_code cx_source_averages(cx_session session, const cx_part* averages,
                                  size_t count);

enum {
  CX_STEP_APPLIED = 1,  // with the averages that were copied last
  CX_STEP_LAST = 2      // the members regroup after it
};
typedef struct cx_taken_step {
  size_t size;
  uint64_t flags;    // CX_STEP_*
  int64_t progress;  // how many steps the state has, the same on all ranks
  const void* rest;  // of rank 0: what a newcomer needs to take the step, and
  size_t rest_size;  // where one begins to make its state; 64 MiB at most
  const cx_part* state;  // after the step, in an order that all ranks have in
  size_t state_count;    // common; `parameter` is not looked at
} cx_taken_step;
// Sends a step, once its state is that of the parts; what is needed of them is
// copied. Also where the step was skipped, and, with CX_STEP_LAST, once more
// where the generation ends after it: newcomers that are not in step by then
// are given up.
CX_API cx_code cx_source_step(cx_session session, const cx_taken_step* step);
// Gives newcomers nothing more: they copy the state when the members regroup.
CX_API cx_code cx_source_drop(cx_session session);

// A newcomer's part: functions that the library calls on a thread of its own,
// one after the other, until cx_newcomer_finish has returned. Each returns
// CX_OK, or a code, with a text by cx_hook_fail: then the newcomer gives up.
// They throw nothing, and call no function with a session. `rest` is that of
// cx_taken_step, and stays valid until the function returns.

// Makes memory for the state after the step.
typedef cx_code (*cx_begin_state_fn)(void* data, const void* rest,
                                     size_t rest_size);
// Return the parts of the state, as it is after this step (`rest` is empty),
// and memory for the averages of the step. Valid until the next function.
typedef cx_code (*cx_parts_fn)(void* data, const void* rest, size_t rest_size,
                               const cx_part** parts, size_t* count);
// Takes the step, with these averages unless `applied` is 0.
typedef cx_code (*cx_step_fn)(void* data, const void* rest, size_t rest_size,
                              int32_t applied);
// Goes back to what was there before `begin`. Any other code than CX_OK: it
// could not.
typedef cx_code (*cx_undo_fn)(void* data);

typedef struct cx_newcomer_calls {
  size_t size;
  void* data;
  cx_begin_state_fn begin;
  cx_parts_fn state;
  cx_parts_fn averages;
  cx_step_fn step;
  cx_undo_fn undo;
} cx_newcomer_calls;

// Listens for members, with the options of the cx_join that follows, whose
// field `newcomer` is what this returns. What `calls` points to is copied, but
// for `data`.
CX_API cx_code cx_newcomer_listen(const cx_join_options* options,
                                  const cx_newcomer_calls* calls,
                                  cx_newcomer* newcomer);

typedef struct cx_caught_up {
  size_t size;
  int32_t caught_up;  // not 0: the state is that of the members
  int32_t reserved;
  int64_t lineage;  // of the state: cx_source_open
  int64_t trained;  // the generation of the members that have sent it
  int64_t progress;
  const char* damage;  // a line for each piece that has arrived damaged
} cx_caught_up;
// Ends it, after cx_join has returned, also with an error. Whatever this
// returns, `newcomer` is not open any more. Where members have sent a state,
// waits for their last step as long as no `timeout_ms` passes in which nothing
// comes, 30 s at most; a call that is cancelled does not. Unless it has caught
// up, the program's state is what it was; a program that has must compare it
// with a member's, and go back by itself if it differs. CX_DATA_LOSS: `undo`
// has failed. After any other error, also of its arguments or because it was
// cancelled, it may have caught up, and the program goes back by itself, too.
CX_API cx_code cx_newcomer_finish(cx_newcomer newcomer, int64_t timeout_ms,
                                  cx_caught_up* caught_up, cx_call* call);

// ---- collectives of all ranks, in memory of the CPU ----

// Each is called by all ranks, in the same order. The first one connects them.
// Ranks that call different ones get CX_INVALID_ARGUMENT, which names them.
// Data is exchanged in place, and all ranks receive the same bits.

enum { CX_SUM = 0, CX_MIN = 1, CX_MAX = 2 };
CX_API cx_code cx_all_reduce(cx_session session, void* data, int64_t count,
                             cx_dtype dtype, int32_t op, cx_call* call);
// Copies the data of the rank `root` to all.
CX_API cx_code cx_broadcast(cx_session session, void* data, int64_t count,
                            cx_dtype dtype, int32_t root, cx_call* call);
// `output` takes `output_count` elements: those of all ranks, by rank, which
// must be world_size times `input_count`.
CX_API cx_code cx_all_gather(cx_session session, const void* input,
                             int64_t input_count, void* output,
                             int64_t output_count, cx_dtype dtype,
                             cx_call* call);

// ---- checkpoints: since minor 3 ----

// What a job goes on from, in new processes and on any number of ranks: kept by
// the coordinator, as a whole or not at all. docs/checkpoints.md.

enum { CX_PIECE_OWN = 1 };  // each rank has its own piece of this name
// Named bytes. Those of one name that follow each other, on one rank, are
// joined. A piece without CX_PIECE_OWN is the same on all ranks, and rank 0's
// is saved. Names have 1 to 512 bytes; those that begin with "rank/" or
// ".hook/" are the library's own. Programs of the C++ library call their model
// ".model", their optimizer ".optimizer" and their record "elastic".
typedef struct cx_piece {
  const char* name;
  const void* data;
  size_t size;
  uint64_t flags;
} cx_piece;

enum {
  // Each rank's own errors of a hook are saved, in place of their mean:
  // training
  // goes on bit by bit on as many ranks. As many times the bytes.
  CX_CHECKPOINT_OWN_ERRORS = 1
};
typedef struct cx_checkpoint {
  size_t size;
  uint64_t flags;              // the same for all of a session
  int64_t step;                // optimizer steps done: the same on all ranks
  const char* reason;          // for the log
  const cx_setting* metadata;  // the same on all ranks; shown by `coxswain
  size_t metadata_count;       // checkpoint show`
  const cx_piece* pieces;      // 2^20 at most
  size_t piece_count;
  int64_t keep_every;  // rank 0's: which earlier checkpoints of the job stay;
  int32_t keep_last;   // 0 for both: as the coordinator has it
  int32_t reserved;
} cx_checkpoint;

// Copies the pieces, and what the hooks of the session's streams remember, and
// saves them while the program goes on; all ranks call it after the same step,
// such as one whose decision asks for it. One save is in progress at a time,
// and one more may wait; a newer one takes the place of the one that waits.
// What becomes of it is in the log, and cx_checkpoint_saved has it. An error
// returned here is this rank's, and makes the save of this step fail on all of
// them, unless it is one of these:
//   CX_INVALID_ARGUMENT     the other ranks wait for this one
//   CX_FAILED_PRECONDITION  the plan's hook has a state, such as powersgd, and
//                           the stream "train" does not exchange by it
CX_API cx_code cx_checkpoint_save(cx_session session,
                                  const cx_checkpoint* checkpoint);

typedef struct cx_checkpoint_report {
  size_t size;
  int32_t busy;            // not 0: a save is in progress, or waits
  cx_code code;            // of the last one that has ended; CX_OK before that
  int64_t step;            // of that one; -1: there is none
  const char* checkpoint;  // its id, if it was saved
  const char* error;       // or why not
} cx_checkpoint_report;
// Waits until no save is in progress, `timeout_ms` at most; with 0 it does not
// wait. Before cx_leave, which ends one that is. CX_DEADLINE_EXCEEDED: one is
// still in progress; the report is filled then, too.
CX_API cx_code cx_checkpoint_saved(cx_session session, int64_t timeout_ms,
                                   cx_checkpoint_report* report, cx_call* call);

typedef struct cx_checkpoint_info {
  size_t size;
  int64_t step;
  int64_t bytes;
  int64_t created_ms;  // since 1970, by the coordinator's clock
  const char* id;
  const char* hook;    // its canonical spec
  int32_t world_size;  // of the ranks that saved it
  int32_t reserved;
  const cx_setting* metadata;  // such as position/train: ended windows of that
  size_t metadata_count;       // stream
} cx_checkpoint_info;

// Finds a complete checkpoint of the job: by its id, by its step as decimal
// digits, or "newest", the last one made; the newest of a step.
// CX_NOT_FOUND: there is none.
CX_API cx_code cx_checkpoint_find(cx_session session, const char* which,
                                  cx_checkpoint_info* info, cx_call* call);
// Returns the complete checkpoint number `index`; 0 is the newest.
// CX_OUT_OF_RANGE: there are no more.
CX_API cx_code cx_checkpoint_at(cx_session session, int64_t index,
                                cx_checkpoint_info* info, cx_call* call);

// Loads a checkpoint, of any number of ranks, for cx_checkpoint_piece: `which`
// as for cx_checkpoint_find. With "newest" all ranks call it, and load the same
// one. Replaces what was loaded before; `info` may be NULL. Of a checkpoint
// with each rank's own errors, as many ranks have no pieces of the other ranks.
//   CX_NOT_FOUND  there is none
//   CX_DATA_LOSS  what is stored is damaged, or no training state
CX_API cx_code cx_checkpoint_load(cx_session session, const char* which,
                                  cx_checkpoint_info* info, cx_call* call);

typedef struct cx_piece_info {
  size_t size;
  const char* name;
  const void* data;
  size_t data_size;
  int32_t rank;  // whose own it is; -1: the same for all
  int32_t reserved;
} cx_piece_info;
// Returns the piece number `index` of what was loaded, in the memory of the
// library, which stays until cx_checkpoint_load, cx_checkpoint_release or
// cx_close. CX_OUT_OF_RANGE: there are no more; CX_FAILED_PRECONDITION: nothing
// is loaded.
CX_API cx_code cx_checkpoint_piece(cx_session session, int64_t index,
                                   cx_piece_info* piece);
// Has the hook of a stream go on with what was loaded: at once or, if the
// stream is not open, by cx_exchange_open. Before the stream's first step.
//   CX_NOT_FOUND            it has no state of that stream
//   CX_FAILED_PRECONDITION  it is of another hook or model, which stays as it
//                           was; or nothing is loaded
CX_API cx_code cx_checkpoint_hook(cx_session session, const char* stream,
                                  cx_call* call);
// Frees what was loaded.
CX_API cx_code cx_checkpoint_release(cx_session session);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // COXSWAIN_CAPI_COXSWAIN_H_
