/* A channel in shared memory between two ranks: client/comm/shm/shm_channels.cc
 * with client/comm/shm/doorbell.h. Each side has a count that it alone writes, of
 * the blocks sent or taken, and a doorbell at which it sleeps until the other's
 * count moves. Words are sequentially consistent there and here; every step is
 * one access to a shared word, but for what a process knows of the peer and
 * itself, which a lock guards. A block is written and read in two steps, between
 * which anything may happen. The spin before a sleep is left out: it looks, and
 * changes nothing. Which end is open is told by messages, in order, as between
 * hosts (slots.pml).
 *
 * Demanded: each block is received once, in its order and as it was written; a
 * receiver gets all that were sent before the sender's end; neither sleeps for
 * ever (spin's check for invalid end states). Without ENDS no
 * end is closed; with it, each closes its own, sooner or later, and the peer
 * notices.
 *
 * The mutants, each of which must be found wrong:
 *   ONE_TOO_MANY      a sender is ahead by one block more than there are slots
 *   COUNTED_EARLY     a block counts as sent before it is written
 *   FREED_EARLY       a block counts as taken before it is copied
 *   COUNT_AFTER_LOOK  whether the other sleeps is read before the count is
 *                     written
 *   END_WITHOUT_RING  an end of the peer that rings no bell
 *   END_BEFORE_COUNT  a receiver looks at the count, then whether the sender has
 *                     ended, and not at the count again
 */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef BLOCKS
#define BLOCKS 4
#endif

#define SENDER 0
#define RECEIVER 1

/* Whether a slot is free, as the sender sees it. */
#ifdef ONE_TOO_MANY
#define FREE (done - theirs <= SLOTS)
#else
#define FREE (done - theirs < SLOTS)
#endif

byte count[2];
byte bell[2];
bool sleeping[2];
/* What a process has been told: that the peer's end is closed. */
bool ended[2];
bool closed[2];
/* Contents: the number of the block from 1 on; 0 while it is written. */
byte slot[SLOTS];

inline CountAndRing(self) {
#ifdef COUNT_AFTER_LOOK
  awake = !sleeping[1 - self];
  count[self] = done;
#else
  count[self] = done;
  awake = !sleeping[1 - self];
#endif
  if
  :: awake -> skip
  :: !awake -> atomic { bell[1 - self]++ }
  fi
}

/* Sleeps while the bell is as it was heard. */
inline Sleep(self) {
  bell[self] != heard
}

proctype Send() {
  byte done, heard, theirs;
  bool awake, over;
  do
  :: done == BLOCKS -> break
#ifdef ENDS
  :: done < BLOCKS -> break
#endif
  :: done < BLOCKS ->
     theirs = count[RECEIVER];
     over = ended[SENDER];
     if
     :: over -> goto finished
     :: !over && FREE -> skip
     :: !over && !FREE ->
        sleeping[SENDER] = true;
        do
        :: heard = bell[SENDER];
           theirs = count[RECEIVER];
           over = ended[SENDER];
           if
           :: over || FREE -> break
           :: !over && !FREE -> Sleep(SENDER)
           fi
        od;
        sleeping[SENDER] = false;
        if
        :: over -> goto finished
        :: !over -> skip
        fi
     fi;
#ifdef COUNTED_EARLY
     done++;
     CountAndRing(SENDER);
     slot[(done - 1) % SLOTS] = 0;
     slot[(done - 1) % SLOTS] = done
#else
     slot[done % SLOTS] = 0;
     slot[done % SLOTS] = done + 1;
     done++;
     CountAndRing(SENDER)
#endif
  od;
finished:
#ifdef ENDS
  closed[SENDER] = true
#else
  skip
#endif
}

proctype Receive() {
  byte done, heard, theirs;
  bool awake, over;
  do
  :: done == BLOCKS -> break
#ifdef ENDS
  :: done < BLOCKS -> break
#endif
  :: done < BLOCKS ->
     sleeping[RECEIVER] = true;
     do
     :: heard = bell[RECEIVER];
        theirs = count[SENDER];
        over = ended[RECEIVER];
#ifndef END_BEFORE_COUNT
        if
        :: over -> theirs = count[SENDER]
        :: !over -> skip
        fi;
#endif
        if
        :: over || theirs != done -> break
        :: !over && theirs == done -> Sleep(RECEIVER)
        fi
     od;
     sleeping[RECEIVER] = false;
     if
     :: theirs == done ->
        /* Nothing more comes: then all of it has been taken. */
        assert(count[SENDER] == done);
        break
     :: theirs != done -> skip
     fi;
#ifdef FREED_EARLY
     done++;
     CountAndRing(RECEIVER);
     assert(slot[(done - 1) % SLOTS] == done);
     assert(slot[(done - 1) % SLOTS] == done)
#else
     assert(slot[done % SLOTS] == done + 1);
     assert(slot[done % SLOTS] == done + 1);
     done++;
     CountAndRing(RECEIVER)
#endif
  od;
#ifdef ENDS
  closed[RECEIVER] = true
#endif
}

/* The thread of the messages of each side. */
proctype Listen(byte self) {
end_nothing_to_hear:
  closed[1 - self];
  ended[self] = true;
#ifndef END_WITHOUT_RING
  atomic { bell[self]++ }
#endif
}

init {
  atomic {
    run Send();
    run Receive();
    run Listen(SENDER);
    run Listen(RECEIVER)
  }
}
