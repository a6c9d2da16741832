/* Which rank may write what, when: the alternation of posts and slots in
 * client/comm/shm/shm_collectives.h, and the phases of client/comm/shm/shm_collectives.cc.
 * Each piece of memory holds the number of the collective (and piece) that it
 * was written for; a reader demands that it is the one that it runs. Ranks
 * meet as phases.pml shows that they do.
 *
 * All sequences of OPERATIONS collectives are explored, of the kinds
 *   small     post and slot; one meeting
 *   direct    each rank reads its slice of all buffers and writes the result
 *             there; two meetings
 *   pieces    through the input and output areas, two pieces; one meeting for
 *             the posts, two for each piece
 *   mismatch  the ranks find that they do not agree, after one meeting
 *
 * The mutants, each of which must be found wrong:
 *   ONE_SLOT            posts and slots do not alternate
 *   DIRECT_ONE_PHASE    a direct collective does not meet at its end
 *   DIRECT_NO_MEETING   ... or not at its beginning
 *   PIECES_ONE_PHASE    results are read without another meeting
 */

#ifndef RANKS
#define RANKS 2
#endif
#ifndef OPERATIONS
#define OPERATIONS 4
#endif

#ifdef ONE_SLOT
#define TURN(operation) 0
#else
#define TURN(operation) ((operation) % 2)
#endif

#define SMALL 0
#define DIRECT 1
#define PIECES 2
#define MISMATCH 3

/* What memory holds: an input or a result of an operation's piece. */
#define INPUT(operation, piece) ((operation) * 8 + (piece) * 2)
#define RESULT(operation, piece) ((operation) * 8 + (piece) * 2 + 1)

typedef PerTurn { byte at[2] };
typedef PerSlice { byte at[RANKS] };

byte kind[OPERATIONS + 1];
byte arrived[RANKS];
PerTurn post[RANKS];
PerTurn slot[RANKS];
PerSlice buffer[RANKS];
byte input[RANKS];
byte output[RANKS];

/* One step for each rank. */
#define EACH(body)                                \
  do                                              \
  :: atomic { peer < RANKS -> body; peer++ }      \
  :: atomic { peer == RANKS -> peer = 0; break }  \
  od

inline Arrive() {
  arrived[me] = arrived[me] + 1
}

inline Meet() {
  /* Blocks at the first that has not come. */
  EACH(arrived[peer] >= arrived[me])
}

inline Begin() {
  post[me].at[TURN(operation)] = operation;
  if
  :: kind[operation] == SMALL -> slot[me].at[TURN(operation)] = operation
  :: kind[operation] == DIRECT ->
     /* The program's own gradients; its memory until it begins. */
     EACH(buffer[me].at[peer] = INPUT(operation, 0))
  :: else
  fi;
  Arrive()
}

inline ComparePosts() {
  EACH(assert(post[peer].at[TURN(operation)] == operation))
}

inline Small() {
  EACH(assert(slot[peer].at[TURN(operation)] == operation))
}

inline Direct() {
  EACH(assert(buffer[peer].at[me] == INPUT(operation, 0)));
  EACH(buffer[peer].at[me] = RESULT(operation, 0));
#ifndef DIRECT_ONE_PHASE
  Arrive();
  Meet();
#endif
  EACH(assert(buffer[me].at[peer] == RESULT(operation, 0)))
}

inline Pieces() {
  piece = 0;
  do
  :: piece == 2 -> break
  :: piece < 2 ->
     input[me] = INPUT(operation, piece);
     Arrive();
     Meet();
     EACH(assert(input[peer] == INPUT(operation, piece)));
     output[me] = RESULT(operation, piece);
#ifndef PIECES_ONE_PHASE
     Arrive();
     Meet();
#endif
     EACH(assert(output[peer] == RESULT(operation, piece)));
     piece++
  od
}

proctype Rank(byte me) {
  byte operation, peer, piece;
  operation = 1;
  do
  :: operation > OPERATIONS -> break
  :: operation <= OPERATIONS ->
     Begin();
#ifdef DIRECT_NO_MEETING
     if
     :: kind[operation] != DIRECT -> Meet(); ComparePosts()
     :: else
     fi;
#else
     Meet();
     ComparePosts();
#endif
     if
     :: kind[operation] == SMALL -> Small()
     :: kind[operation] == DIRECT -> Direct()
     :: kind[operation] == PIECES -> Pieces()
     :: kind[operation] == MISMATCH
     fi;
     operation++
  od
}

init {
  byte i;
  atomic {
    i = 1;
    do
    :: i > OPERATIONS -> break
    :: i <= OPERATIONS ->
       if
       :: kind[i] = SMALL
       :: kind[i] = DIRECT
       :: kind[i] = PIECES
       :: kind[i] = MISMATCH
       fi;
       i++
    od;
    i = 0;
    do
    :: i == RANKS -> break
    :: i < RANKS -> run Rank(i); i++
    od
  }
}
