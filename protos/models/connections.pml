/* One session of profile 1, a client that restarts, and a second aggregator of the domain.
 *
 * The offer came from aggregator A, which is honest: it takes an upload, ends the session
 * or shows one set U3, and releases one sum.  Aggregator B has a certificate of the same
 * domain and lies: on its connections it says whatever a client would hear.  The scheduler
 * decides when a client restarts, and to which aggregator it connects then (PROTOCOL §5.0).
 * A client resumes with what it has stored; what it was told and had not stored is lost.
 *
 * Claims, asserted after every step:
 *   - INPUT:  the masked vector is sent to A alone;
 *   - ANSWER: shares leave only for the set that A has shown;
 *   - REFUND: no charge is given back for a session whose sum contains the client;
 *   - SUM:    the client believes a sum only if A has released it.
 *
 * R5.0-6 is asked where a client sends and where it is told something.  It can be missing
 * at one of these places, and then the claim of that place fails:
 *   -DNO_RULE_INPUT  -DNO_RULE_ANSWER  -DNO_RULE_REFUND  -DNO_RULE_SUM
 *   -DFIRST_CONNECTION_ONLY  the rule is kept until the client restarts
 *   -DREFUND_AFTER_U3        fate 0 is believed for a set that the client has answered
 * The last one is a second line: A never says fate 0 for a set that it has shown.
 * -DNEVER_REFUNDED and -DNEVER_BELIEVED are false claims: the model does get so far.
 */

#define A    0
#define B    1
#define NONE 2          /* no set */

mtype = { Offered, Masked, Answered, Over };

/* What A has done. */
bool has_input, has_answer, lost, released;
byte shown = NONE;

/* What the client has done, as far as others see it. */
bool sent_to_b, answered_other, refunded, believed;

bool restarted;

#ifdef FIRST_CONNECTION_ONLY
#define OF_OFFER(peer) ((peer) == A || restarted)
#else
#define OF_OFFER(peer) ((peer) == A)
#endif

#ifdef NO_RULE_INPUT
#define MAY_UPLOAD(peer) true
#else
#define MAY_UPLOAD(peer) OF_OFFER(peer)
#endif
#ifdef NO_RULE_ANSWER
#define MAY_ANSWER(peer) true
#else
#define MAY_ANSWER(peer) OF_OFFER(peer)
#endif
#ifdef NO_RULE_REFUND
#define MAY_REFUND(peer) true
#else
#define MAY_REFUND(peer) OF_OFFER(peer)
#endif
#ifdef NO_RULE_SUM
#define MAY_BELIEVE(peer) true
#else
#define MAY_BELIEVE(peer) OF_OFFER(peer)
#endif
#ifdef REFUND_AFTER_U3
#define OPEN_TO_REFUND(state) (state == Offered || state == Masked || state == Answered)
#else
#define OPEN_TO_REFUND(state) (state == Offered || state == Masked)
#endif

inline check() {
    assert(!sent_to_b);
    assert(!answered_other);
    assert(!(refunded && released));
    assert(!(believed && !released));
#ifdef NEVER_REFUNDED
    assert(!refunded)
#endif
#ifdef NEVER_BELIEVED
    assert(!(believed && has_answer))
#endif
}

active proctype Client() {
    mtype disk = Offered;
    byte peer = A, set = NONE, told;

    do
    /* The upload, again after a restart: the bytes are the stored ones. */
    :: (disk == Offered || disk == Masked) && MAY_UPLOAD(peer) ->
        atomic { disk = Masked };                       /* persist */
        if
        :: atomic { peer == A -> has_input = has_input || (shown == NONE && !lost); check() }
        :: atomic { peer == B -> sent_to_b = true; check() }
        :: skip                                         /* a crash came first */
        fi
    /* A set U3: A shows one, B any. */
    :: disk == Masked && MAY_ANSWER(peer) ->
        if
        :: atomic { peer == A && shown != NONE -> told = shown }
        :: atomic { peer == B -> if :: told = 0 :: told = 1 fi }
        :: told = NONE
        fi;
        if
        :: told == NONE -> skip
        :: else ->
            atomic { disk = Answered; set = told };     /* persist, then send */
            atomic { if
                     :: peer == A -> has_answer = true
                     :: else -> answered_other = answered_other || set != shown
                     fi; told = NONE; check() }
        fi
    /* The same answer again. */
    :: atomic { disk == Answered && MAY_ANSWER(peer) ->
                if :: peer == A -> has_answer = true
                   :: else -> answered_other = answered_other || set != shown fi; check() }
    /* Fate 0: the session is over and this client is in no sum. */
    :: atomic { OPEN_TO_REFUND(disk) && MAY_REFUND(peer) && (peer == B || lost) ->
                disk = Over; refunded = true; check() }
    /* A sum is announced. */
    :: atomic { disk == Answered && MAY_BELIEVE(peer) && (peer == B || released) ->
                disk = Over; believed = true; check() }
    /* A restart or a lost connection, at any time. */
    :: disk != Over -> atomic { restarted = true; told = NONE; if :: peer = A :: peer = B fi }
    :: break
    od
}

/* A includes the client where its upload is there, and needs nothing more to release:
   the shares of this client may come from others. */
active proctype Aggregator() {
    do
    :: atomic { shown == NONE && !lost -> if
                :: has_input -> if :: shown = 0 :: shown = 1 fi
                :: lost = true
                fi; check() }
    :: atomic { shown != NONE && !released -> released = true; check() }
    :: break
    od
}
