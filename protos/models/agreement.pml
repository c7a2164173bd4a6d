/* One session of profile 2 against a server that lies: do honest clients agree on U3?
 *
 * Four enrolled clients, one of them corrupt, t = Q = 3 (PROTOCOL §5.4, §5.5).
 * The scheduler of this model is the server.  It shows any client either of two sets
 * U3 at any time and in any order, and keeps every signature that ever left.  It
 * assembles quorums from them, asks for answers, loses acknowledgements, and restarts
 * clients between any two of their steps.  The corrupt client signs and answers
 * everything.
 *
 * Set 0 names all four clients.  Set 1 omits client 0, the victim: an answer to set 0
 * reveals a share of its self-mask seed, an answer to set 1 one of its mask key.
 *
 * Claims, asserted at every answer:
 *   - there are never quorums for both sets;
 *   - t shares of both secrets of the victim never lie with the server;
 *   - no honest client signs two sets or answers two;
 *   - the sums that contain a client never exceed what it has charged to its budget,
 *     over two sessions of a task, whatever becomes of them.
 *
 * Each of these defences can be removed, and then a claim fails:
 *   -DSIGN_BEFORE_PERSIST  the signature leaves before the set is on the disk
 *   -DSIGN_AGAIN           a client that has signed one set signs another
 *   -DQUORUM_ONE_LESS      Q - 1 signatures count as a quorum
 *   -DREFUND_AFTER_INPUT   a client takes its charge back when a session fails
 * Two more are second lines: without one of them every claim still holds, since there
 * is one quorum at most whatever they let pass:
 *   -DANSWER_ANY_QUORUM    a client answers a quorum for a set that it did not sign
 *   -DNO_OWN_MEMBERSHIP    a client signs a set that omits it
 */

#ifndef Q
#ifdef QUORUM_ONE_LESS
#define Q 2
#else
#define Q 3
#endif
#endif
#define T        3      /* shares that rebuild a secret */
#define HONEST   3      /* clients 0, 1, 2; client 3 is corrupt */
#define CORRUPT  1
#define SESSIONS 2
#define NONE     2      /* no set yet */

#define NAMES(set, client) ((set) == 0 || (client) != 0)

mtype = { Masked, Signed, Answered };

/* What the server has, in the session at hand. */
bool signature[6];      /* of client c on set s, at 2c + s */
bool answer[6];

#define COUNT(what, s) (what[s] + what[2 + s] + what[4 + s] + CORRUPT)

byte charged[HONEST];   /* sessions on each client's budget */
byte summed[HONEST];    /* sums that contain its input */
byte over;              /* honest clients that are done with the session */
byte session;

inline check() {
    assert(!(COUNT(signature, 0) >= Q && COUNT(signature, 1) >= Q));
    assert(!(COUNT(answer, 0) >= T && COUNT(answer, 1) >= T))
}

proctype Client(byte me) {
    mtype disk, memory;
    byte disk_set, set, wanted, mine;

    do
    :: mine < SESSIONS && session == mine ->
        atomic {
            disk = Masked; memory = Masked; disk_set = NONE; set = NONE;
            charged[me]++          /* one transaction with the bound input */
        }
        do
        /* Survivors: a set U3 arrives, the first one or another. */
#ifdef SIGN_AGAIN
        :: memory == Masked || memory == Signed ->
#else
        :: memory == Masked ->                      /* from Signed on: EQUIVOCATION */
#endif
            if :: wanted = 0 :: wanted = 1 fi;
            if
#ifndef NO_OWN_MEMBERSHIP
            :: !NAMES(wanted, me) -> skip           /* U3_INVALID: the client leaves */
            :: else ->
#else
            :: true ->
#endif
#ifdef SIGN_BEFORE_PERSIST
                atomic { signature[2 * me + wanted] = true; check() };
                if
                :: atomic { disk = Signed; disk_set = wanted;
                            memory = Signed; set = wanted }
                :: skip                             /* a crash came first */
                fi
#else
                atomic { disk = Signed; disk_set = wanted;
                         memory = Signed; set = wanted };
                if
                :: atomic { signature[2 * me + set] = true; check() }
                :: skip                             /* a crash came first */
                fi
#endif
            fi
        /* The acknowledgement was lost, or the client is back: the same bytes again. */
        :: memory == Signed ->
            atomic { signature[2 * me + set] = true; check() }
        /* Quorum: enough signatures on one set, as this client counts them. */
        :: memory == Signed || memory == Answered ->
            if :: wanted = 0 :: wanted = 1 fi;
            if
#ifdef ANSWER_ANY_QUORUM
            :: COUNT(signature, wanted) >= Q ->
                atomic { disk = Answered; memory = Answered;
                         answer[2 * me + wanted] = true; check() }
            :: else -> skip
#else
            :: COUNT(signature, wanted) >= Q && wanted == set ->
                atomic { disk = Answered; disk_set = set; memory = Answered };
                atomic { answer[2 * me + set] = true; check() }
            :: else -> skip                         /* BAD_SIGNATURE or NO_QUORUM */
#endif
            fi
        /* A crash between any two steps: what is in memory is gone. */
        :: atomic { memory = disk; set = disk_set }
        /* The session ends for this client, at any time, for whatever reason. */
        :: break
        od;
#ifdef REFUND_AFTER_INPUT
        if :: charged[me]-- :: skip fi;             /* "the server says it failed" */
#endif
        atomic { mine++; over++; disk = Masked; memory = Masked;
                 disk_set = NONE; set = NONE; wanted = 0 }
    :: mine == SESSIONS -> break
    od
}

/* The end of a session: what the server can compute from what it has, then the next. */
active proctype Task() {
    byte client;
    do
    :: session < SESSIONS ->
        over == HONEST;
        atomic {
            if
            :: COUNT(answer, 0) >= T ->
                for (client : 0 .. HONEST - 1) { summed[client]++ }
            :: COUNT(answer, 0) < T && COUNT(answer, 1) >= T ->
                for (client : 1 .. HONEST - 1) { summed[client]++ }
            :: else -> skip
            fi;
            for (client : 0 .. HONEST - 1) {
                assert(summed[client] <= charged[client])
            }
            client = 0; over = 0; session++;
            signature[0] = false; signature[1] = false; signature[2] = false;
            signature[3] = false; signature[4] = false; signature[5] = false;
            answer[0] = false; answer[1] = false; answer[2] = false;
            answer[3] = false; answer[4] = false; answer[5] = false
        }
    :: session == SESSIONS -> break
    od
}

init { atomic { run Client(0); run Client(1); run Client(2) } }
