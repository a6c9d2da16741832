/* A channel with slots between two ranks: client/comm/tcp/tcp_channels.{h,cc}.
 * One rank sends, the other receives; each has a ring of slots, a queue of
 * frames that are still to be written, and a thread that writes and reads its
 * connection. A frame has its bytes in the sender's slot until it is written,
 * and a block is written, read and copied in two steps, between which anything
 * may happen.
 *
 * Demanded: each block is received once, in its order and as it was sent; no
 * frame comes that the other end would refuse; all blocks have been taken when
 * the sender has drained; and no process waits for ever (spin's check for invalid
 * end states). With STOPS, either rank is stopped at any time, which drops what
 * it has not written: then both end.
 *
 * The mutants, each of which must be found wrong:
 *   ONE_TOO_MANY        a sender is ahead by one block more than there are slots
 *   WITHOUT_ANSWER      a sender does not wait until the receiver has opened
 *   FREED_EARLY         the receiver frees a slot before it has copied it
 *   COUNTED_EARLY       a block counts as arrived before its bytes have
 *   FREED_ON_ARRIVAL    slots are freed by arrivals, not by Receive
 *   STOP_WITHOUT_END    a stop that the peer does not notice
 */

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef BLOCKS
#define BLOCKS 4
#endif

#define SENDER 0
#define RECEIVER 1

#define OPEN 1
#define SLOT 2
#define FREED 3
#define END 4

#ifdef ONE_TOO_MANY
#define FULL (ahead - behind > SLOTS)
#else
#define FULL (ahead - behind >= SLOTS)
#endif

#ifdef WITHOUT_ANSWER
#define ANSWERED true
#else
#define ANSWERED answered
#endif

/* Queues of frames, and what is between the two. */
chan queued = [SLOTS + 2] of { byte, byte };
chan answers = [BLOCKS + 1] of { byte, byte };
chan there = [1] of { byte, byte, byte };
chan back = [1] of { byte, byte };

/* Contents: the number of the block from 1 on; 0 is none. */
byte sending[SLOTS];
byte arriving[SLOTS];
/* Of the sender: blocks sent, and those that it knows to be taken. */
byte ahead, behind;
/* Of the sender: blocks whose slots are not read any more. */
byte written;
/* Of the receiver: blocks arrived, and taken. */
byte arrived, taken;
bool opened;   /* by the receiver */
bool answered; /* as the sender knows */
bool stopped[2];
bool lost[2];

inline Queue(rank, frames, kind, number) {
  if
  :: atomic { !stopped[rank] -> assert(nfull(frames)); frames!kind,number }
  :: atomic { stopped[rank] -> skip }
  fi
}

proctype Send() {
  byte block, at;
  Queue(SENDER, queued, OPEN, 0);
  do
  :: atomic { block == BLOCKS -> break }
  :: atomic { block < BLOCKS -> skip }
     if
     :: atomic { stopped[SENDER] || lost[SENDER] -> goto ended }
     :: atomic {
          !stopped[SENDER] && !lost[SENDER] && ANSWERED && !FULL ->
          at = ahead % SLOTS;
          ahead++
        }
     fi;
     sending[at] = 0;
     sending[at] = block + 1;
     Queue(SENDER, queued, SLOT, block);
     block++
  od;
  if
  :: atomic { stopped[SENDER] || lost[SENDER] -> goto ended }
  :: atomic { behind == ahead -> assert(taken == BLOCKS) }
  fi;
ended:
  skip
}

proctype Receive() {
  byte block;
  opened = true;
  Queue(RECEIVER, answers, OPEN, 0);
  do
  :: atomic { block == BLOCKS -> break }
  :: atomic { block < BLOCKS -> skip }
     if
     :: atomic { stopped[RECEIVER] -> goto ended }
     :: atomic { lost[RECEIVER] && arrived == taken -> goto ended }
     :: atomic { !stopped[RECEIVER] && arrived > taken -> skip }
     fi;
#ifdef FREED_EARLY
     taken++;
     Queue(RECEIVER, answers, FREED, taken);
#endif
     assert(arriving[block % SLOTS] == block + 1);
     assert(arriving[block % SLOTS] == block + 1);
#ifndef FREED_EARLY
     taken++;
#ifndef FREED_ON_ARRIVAL
     Queue(RECEIVER, answers, FREED, taken);
#endif
#endif
     block++
  od;
ended:
  skip
}

proctype SenderWrites() {
  byte kind, block, half;
end_nothing_to_write:
  do
  :: atomic { nempty(queued) -> queued?<kind,block> }
     if
     :: atomic { kind == SLOT -> half = sending[block % SLOTS] }
     :: atomic { kind == OPEN -> half = 0 }
     fi;
     if
     :: atomic {
          nfull(there) && !stopped[SENDER] ->
          assert(kind == OPEN || half == block + 1);
          assert(kind == OPEN || sending[block % SLOTS] == half);
          queued?kind,block;
          there!kind,block,half;
          written = (kind == SLOT -> written + 1 : written);
          half = 0
        }
     :: atomic { stopped[SENDER] -> break }
     fi
  :: atomic { stopped[SENDER] -> break }
  od;
#ifndef STOP_WITHOUT_END
  there!END,0,0
#endif
}

proctype ReceiverWrites() {
  byte kind, number;
end_nothing_to_write:
  do
  :: atomic {
       nempty(answers) && nfull(back) && !stopped[RECEIVER] ->
       answers?kind,number;
       back!kind,number
     }
  :: atomic { stopped[RECEIVER] -> break }
  od;
#ifndef STOP_WITHOUT_END
  back!END,0
#endif
}

proctype ReceiverReads() {
  byte kind, block, contents;
end_nothing_to_read:
  do
  :: there?kind,block,contents ->
     if
     :: atomic { kind == OPEN -> skip }
     :: atomic { kind == END -> lost[RECEIVER] = true; break }
     :: atomic {
          kind == SLOT ->
          assert(opened && block == arrived && arrived - taken < SLOTS)
        }
#ifdef COUNTED_EARLY
        arrived++;
#endif
        arriving[block % SLOTS] = 0;
        arriving[block % SLOTS] = contents;
#ifndef COUNTED_EARLY
        arrived++;
#endif
#ifdef FREED_ON_ARRIVAL
        Queue(RECEIVER, answers, FREED, arrived);
#endif
     fi
  od
}

proctype SenderReads() {
  byte kind, number;
end_nothing_to_read:
  do
  :: back?kind,number ->
     if
     :: atomic { kind == OPEN -> answered = true }
     :: atomic { kind == END -> lost[SENDER] = true; break }
     :: atomic {
          kind == FREED ->
          assert(number > behind && number <= written);
          behind = number
        }
     fi
  od
}

#ifdef STOPS
proctype Stopper() {
end_no_stop:
  if
  :: stopped[SENDER] = true
  :: stopped[RECEIVER] = true
  fi
}
#endif

init {
  atomic {
    run Send();
    run Receive();
    run SenderWrites();
    run ReceiverWrites();
    run ReceiverReads();
    run SenderReads();
#ifdef STOPS
    run Stopper()
#endif
  }
}
