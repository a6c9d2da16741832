/* How the ranks of one host keep step: client/comm/shm/phases.{h,cc}. Every
 * step is one access to a shared word, in the order of the C++, and all
 * interleavings of them are explored; the words are sequentially consistent
 * there and here. A futex compares and sleeps in one step, and never wakes by
 * itself, so that nothing but the bell can save a sleeper. The spin before a
 * sleep is left out: it looks, and changes nothing.
 *
 * Demanded: a rank that has met the others finds them where it is or one phase
 * ahead; no rank sleeps for ever (spin's check for invalid end states); without
 * a stop all get through all phases.
 *
 * RANKS and PHASES set the size. With STOPS, any rank is stopped at any time,
 * and its peers once it has ended, which their listeners would notice. With
 * LATE, a wait may time out once a phase, and is repeated.
 *
 * The mutants, each of which must be found wrong:
 *   BELL_READ_LATE      the bell is read after the look at the others
 *   FLAG_SET_LATE       `sleeping` is set after the look at the others
 *   ARRIVE_LATE         `sleeping` is read before the arrival is written
 *   WAKE_WITHOUT_RING   a futex is woken, and its bell not moved
 *   STOP_WITHOUT_RING   a stop that rings no bell
 */

#ifndef RANKS
#define RANKS 2
#endif
#ifndef PHASES
#define PHASES 3
#endif

#define MET 0
#define IS_LATE 1
#define IS_STOPPED 2

byte arrived[RANKS];
byte bell[RANKS];
bool sleeping[RANKS];
bool in_futex[RANKS];
bool stopped[RANKS]; /* of one process, not shared */
bool gone;           /* a rank has ended early */

#define FIRST_PEER (me == 0 -> 1 : 0)
#define NEXT_PEER (peer + 1 == me -> peer + 2 : peer + 1)

inline Ring(rank) {
#ifndef WAKE_WITHOUT_RING
  bell[rank]++;
#endif
  in_futex[rank] = false
}

inline RingIfAsleep() {
#ifdef ARRIVE_LATE
  do
  :: atomic { peer < RANKS && !sleeping[peer] -> peer = NEXT_PEER }
  :: peer < RANKS && sleeping[peer] -> arrived[me] = phase; Ring(peer);
     peer = NEXT_PEER
  :: atomic { peer >= RANKS -> arrived[me] = phase; break }
  od
#else
  do
  :: atomic { peer < RANKS && !sleeping[peer] -> peer = NEXT_PEER }
  :: atomic { peer < RANKS && sleeping[peer] -> skip }
     Ring(peer);
     peer = NEXT_PEER
  :: atomic { peer >= RANKS -> peer = 0; break }
  od
#endif
}

inline Arrive() {
  atomic {
    phase++;
    peer = FIRST_PEER;
#ifndef ARRIVE_LATE
    arrived[me] = phase
#endif
  }
  RingIfAsleep()
}

/* Sets `met`; the first that is not there ends the look. */
inline Look() {
  peer = FIRST_PEER;
  do
  :: atomic { peer < RANKS && arrived[peer] >= phase -> peer = NEXT_PEER }
  :: atomic { peer < RANKS && arrived[peer] < phase ->
       peer = 0; met = false; break }
  :: atomic { peer >= RANKS -> peer = 0; met = true; break }
  od
}

inline FutexWait() {
  atomic {
    in_futex[me] = (bell[me] == heard);
    heard = 0
  }
  if
  :: !in_futex[me] /* where a rank sleeps */
#ifdef LATE
  :: atomic { in_futex[me] && !was_late ->
       in_futex[me] = false; was_late = true; outcome = IS_LATE }
#endif
  fi
}

inline Sleep() {
#ifndef FLAG_SET_LATE
  sleeping[me] = true;
#endif
  do
  ::
#ifndef BELL_READ_LATE
     heard = bell[me];
#endif
     Look();
     if
     :: atomic { met -> met = false; outcome = MET; break }
     :: atomic { !met && stopped[me] -> outcome = IS_STOPPED; break }
     :: atomic { !met && !stopped[me] && outcome == IS_LATE -> break }
     :: atomic { !met && !stopped[me] && outcome != IS_LATE -> skip }
     fi;
#ifdef FLAG_SET_LATE
     sleeping[me] = true;
#endif
#ifdef BELL_READ_LATE
     heard = bell[me];
#endif
     FutexWait()
  od;
  atomic {
    heard = 0;
    sleeping[me] = false
  }
}

proctype Rank(byte me) {
  byte phase, peer, heard, outcome;
  bool met, was_late;
  do
  :: atomic { phase == PHASES || outcome == IS_STOPPED -> break }
  :: atomic { phase < PHASES && outcome != IS_STOPPED -> was_late = false }
     Arrive();
     Look();
     do
     :: atomic { met -> met = false; break }
     :: atomic { !met -> outcome = MET }
        Sleep();
        if
        :: atomic { outcome == IS_LATE -> met = false }
        :: atomic { outcome != IS_LATE -> break }
        fi
     od;
     if
     :: d_step {
          outcome == MET ->
          peer = 0;
          do
          :: peer == RANKS -> break
          :: peer < RANKS ->
             assert(arrived[peer] == phase || arrived[peer] == phase + 1);
             peer++
          od;
          peer = 0
        }
     :: outcome == IS_STOPPED
     fi
  od;
  assert(phase == PHASES || stopped[me]);
  if
  :: outcome == IS_STOPPED -> gone = true
  :: else
  fi
}

#ifdef STOPS
inline Stop(rank) {
  stopped[rank] = true;
#ifndef STOP_WITHOUT_RING
  Ring(rank)
#endif
}

proctype Stopper() {
  byte first, other;
end_no_stop:
  do
  :: atomic { first + 1 < RANKS -> first++ }
  :: break
  od;
  Stop(first);
end_nobody_ended_early:
  gone;
  do
  :: atomic { other < RANKS && other == first -> other++ }
  :: other < RANKS && other != first -> Stop(other); other++
  :: other == RANKS -> break
  od
}
#endif

init {
  byte rank;
  atomic {
    do
    :: rank == RANKS -> break
    :: rank < RANKS -> run Rank(rank); rank++
    od;
#ifdef STOPS
    run Stopper()
#endif
  }
}
