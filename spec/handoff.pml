/* The hand-off as a model for Spin, written from the rules (docs/design/rules.md) and not
 * from the Go code. spin_test.go builds it with every guard, and once without each.
 *
 * Three attempts: 0 and 1 are a request and its retry, in one room; 2 is another tenant's.
 * Decode's pool has two pages, and an attempt needs two, so that pages change hands at
 * once. Prefill has source pages for two attempts. A write that was posted lies in the
 * fabric: it lands at any time, or never, once more after it has completed, and whatever
 * its source page then holds.
 *
 * Faults, each at most once and at most two in all: a client leaves (before the pages are read); a write
 * completes and did not land; a write lands twice; prefill's engine is given another
 * prompt than its door saw; prefill refuses a request.
 */

#ifndef OFF_OFFER
#define OFFER 1
#else
#define OFFER 0
#endif
#ifndef OFF_INPUT
#define INPUT 1
#else
#define INPUT 0
#endif
#ifndef OFF_SEAL
#define SEAL 1
#else
#define SEAL 0
#endif
#ifndef OFF_DIGEST
#define DIGEST 1
#else
#define DIGEST 0
#endif
#ifndef OFF_KEY
#define KEY 1
#else
#define KEY 0
#endif
#ifndef OFF_GENERATION
#define GENERATION 1
#else
#define GENERATION 0
#endif
#ifndef OFF_COMPLETION
#define COMPLETION 1
#else
#define COMPLETION 0
#endif
#ifndef OFF_SOURCEHOLD
#define SOURCEHOLD 1
#else
#define SOURCEHOLD 0
#endif

#define FAULT(x) (!x && faults < 2)
#define ATTEMPTS 3
#define PAGES 2
#define NONE 9
#define PLACEHOLDER 8
#define ROOM(a) ((a) == 2 -> 1 : 0)
/* What the prompt of an attempt computes to: a retry has the prompt of its first try. */
#define MADE(a) (ROOM(a) + 1)

mtype = { ask, offer, refuse, grant, notice };

/* Decode's pool. */
byte owner[PAGES] = NONE;   /* attempt */
byte openFor[PAGES] = NONE; /* whose key opens it */
byte holds[PAGES];          /* what was last written; 0: nothing */
bool reading[PAGES];        /* from the verdict to the end of the reading */

/* Prefill's source pages: two sets. */
byte source[2] = 0;
byte sourceOf[ATTEMPTS] = NONE;
bool sourceFree[2] = true;

/* The fabric: two writes an attempt. */
bool posted[ATTEMPTS * PAGES];  /* it may land */
bool complete[ATTEMPTS * PAGES];
bool twice[ATTEMPTS * PAGES];   /* it may land once more behind its completion */

bool over[ATTEMPTS];   /* decode is done with the attempt */
bool pover[ATTEMPTS];  /* prefill is */
bool served[ATTEMPTS];
bool offered[ATTEMPTS];
byte faults = 0;       /* that happened */
bool left = false, lost = false, doubled = false, swapped = false, refused = false;

/* A message names its attempt; channels are those of a room, in order. */
chan toPrefill[2] = [4] of { mtype, byte };
chan toDecode[2] = [6] of { mtype, byte, byte }; /* kind, attempt, input that was computed */

#define KEYOF(a) (KEY -> (a) : 0)

#define OPEN(w) (openFor[(w) % PAGES] != NONE && KEYOF(openFor[(w) % PAGES]) == KEYOF((w) / PAGES))

/* Bytes land if a key like their own opens the page; else they go nowhere. */
inline place(w)
{
  if
  :: OPEN(w) ->
     assert(owner[w % PAGES] == w / PAGES); /* V2: only in its own reservation */
     assert(!reading[w % PAGES]);           /* V1: never in what is read */
     holds[w % PAGES] = source[sourceOf[w / PAGES]]
  :: else
  fi
}

inline end(w)
{
  if
  :: place(w);
     if
     :: !doubled -> doubled = true; twice[w] = true
     :: true
     fi
  :: FAULT(lost) -> lost = true; faults++
  fi;
  complete[w] = true
}

#define GOES(w) :: atomic { posted[w] && !complete[w] -> end(w) } :: atomic { twice[w] && complete[w] -> twice[w] = false; place(w) }

proctype fabric()
{
  do
  GOES(0) GOES(1) GOES(2) GOES(3) GOES(4) GOES(5)
  :: (over[0] && over[1] && over[2] && pover[0] && pover[1] && pover[2]) -> break
  od
}

/* What an attempt still has under way. */
#define UNDERWAY(a) ((posted[(a)*2] && !complete[(a)*2]) || (posted[(a)*2+1] && !complete[(a)*2+1]))

proctype prefill(byte a)
{
  byte computed;
  (a != 1 || over[0]); /* a retry begins when its first try has ended */
  if
  :: toPrefill[ROOM(a)]??ask(eval(a)) ->
     computed = MADE(a);
     if
     :: FAULT(refused) -> refused = true; faults++;
        toDecode[ROOM(a)]!refuse(a, 0);
        if
        :: OFFER -> goto done
        :: else -> computed = PLACEHOLDER /* a placeholder is computed in place of the prompt */
        fi
     :: true
     fi;
     if
     :: FAULT(swapped) && computed != PLACEHOLDER -> swapped = true; faults++; computed = PLACEHOLDER
     :: true
     fi;
     /* source pages in hand, then the offer */
     atomic {
       (sourceFree[0] || sourceFree[1]);
       if
       :: sourceFree[0] -> sourceOf[a] = 0
       :: else -> sourceOf[a] = 1
       fi;
       sourceFree[sourceOf[a]] = false;
       source[sourceOf[a]] = computed
     };
     if
     :: OFFER -> toDecode[ROOM(a)]!offer(a, 0)
     :: else
     fi;
     if
     :: toPrefill[ROOM(a)]??grant(eval(a)) ->
        atomic { posted[a*2] = true; posted[a*2+1] = true };
        if
        :: COMPLETION -> !UNDERWAY(a)
        :: else
        fi;
        toDecode[ROOM(a)]!notice(a, computed);
        if
        :: SOURCEHOLD -> !UNDERWAY(a) && !twice[a*2] && !twice[a*2+1]
        :: else
        fi
     :: over[a] /* decode has ended it; what was posted was not */
     fi;
     atomic { sourceFree[sourceOf[a]] = true }
  :: over[a] /* nobody asked, or not for long */
  fi;
done:
  atomic { computed = 0; pover[a] = true }
}

#define MINE(m, x) ((x) == (m) || !GENERATION)

proctype decode(byte a)
{
  byte who, input;
  (a != 1 || (over[0] && pover[0]));
  toPrefill[ROOM(a)]!ask(a);
  /* the offer */
  if
  :: OFFER ->
     if
     :: toDecode[ROOM(a)]??offer(eval(a), input) -> offered[a] = true
     :: toDecode[ROOM(a)]??refuse(eval(a), input) -> goto ended
     :: FAULT(left) -> left = true; faults++; goto ended
     fi
  :: else
  fi;
  atomic {
    (owner[0] == NONE && owner[1] == NONE);
    assert(offered[a]);                                    /* H-1 */
    owner[0] = a; owner[1] = a;
    openFor[0] = a; openFor[1] = a
  };
  toPrefill[ROOM(a)]!grant(a);
  if
  :: (GENERATION) -> toDecode[ROOM(a)]??notice(eval(a), input); who = a
  :: (!GENERATION) -> toDecode[ROOM(a)]??notice(who, input)
  :: FAULT(left) -> left = true; faults++; goto free
  fi;
  assert(who == a);                                        /* V5 */
  assert(!UNDERWAY(a));                                    /* H-7 */
  if
  :: INPUT && input != MADE(a) -> goto free
  :: else
  fi;
  if
  :: SEAL -> atomic { openFor[0] = NONE; openFor[1] = NONE }
  :: else
  fi;
  /* What is compared with is the digest that prefill made when it computed. */
  if
  :: DIGEST && (holds[0] != input || holds[1] != input) -> goto free
  :: else
  fi;
  atomic { reading[0] = true; reading[1] = true };
  assert(holds[0] == MADE(a));                             /* V1 */
  assert(holds[1] == MADE(a));
  served[a] = true;
  atomic { reading[0] = false; reading[1] = false };
free:
  atomic {
    if
    :: KEY -> openFor[0] = NONE; openFor[1] = NONE
    :: else
    fi;
    owner[0] = NONE; owner[1] = NONE
  };
ended:
  atomic { input = 0; who = 0; over[a] = true }
}

init
{
  atomic {
    run fabric();
    run prefill(0); run prefill(1); run prefill(2);
    run decode(0); run decode(1); run decode(2)
  };
  (over[0] && over[1] && over[2] && pover[0] && pover[1] && pover[2]);
  /* At rest every page is free; and without a fault everybody was served. */
  assert(owner[0] == NONE && owner[1] == NONE && sourceFree[0] && sourceFree[1]);
  assert(!KEY || (openFor[0] == NONE && openFor[1] == NONE));
  assert(faults > 0 || (served[0] && served[1] && served[2]))
}
