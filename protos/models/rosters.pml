/* One session of profile 2 in which a server that lies shows two rosters.
 *
 * Roster 0 is {0, 1, 2} and a corrupt client, roster 1 is {0, 3, 4} and the same corrupt
 * client; t = Q = 3 (PROTOCOL §5.4, §5.5).  Client 0 has one advert, hence one mask key,
 * in both, and accepts one of them.  The server schedules everything: which roster
 * client 0 is shown, if any; which of two sets U3 any client is shown, in any order;
 * which signatures it assembles.  The corrupt client signs and answers everything.
 *
 * In either roster, set 0 names client 0, also where it was shown the other roster, and
 * set 1 leaves it out.  Answers to set 1 of the roster in which it has dealt are shares
 * of its mask key.
 *
 * Claims, asserted at every answer:
 *   - Lemma 1: there are never quorums for both sets of one roster;
 *   - Lemma 2: who answers for a set that names client 0 was shown the same roster;
 *   - Lemma 3: t shares of its mask key never lie with the server while some client
 *     answers for a set that names it.
 *
 * Each of these defences can be taken away, and then a claim fails:
 *   -DNO_ROSTER_PROOF  a client does not ask whether all of U3 were shown its roster
 *   -DACCEPT_AGAIN     a client that has dealt under one roster deals under another
 *   -DQUORUM_ONE_LESS  Q - 1 signatures count as a quorum
 *
 * What crashes change is modelled in agreement.pml: no client restarts here.
 */

#ifdef QUORUM_ONE_LESS
#define Q 2
#else
#define Q 3
#endif
#define T       3       /* shares that rebuild a secret */
#define CORRUPT 1
#define NONE  2       /* no roster, no set */

mtype = { Masked, Signed, Answered };

bool dealt[2];          /* client 0 has signed its bundles under this roster */
bool signature[10];     /* of client c on set s of its roster, at 2c + s */
bool answer[10];
byte home = NONE;     /* the roster that client 0 has accepted first */

#define OF_OTHERS(what, r, s) (what[4 * r + 2 + s] + what[4 * r + 4 + s] + CORRUPT)
#define COUNT(what, r, s)     (OF_OTHERS(what, r, s) + (home == r && what[s]))
#define TWO_QUORUMS(r)        (COUNT(signature, r, 0) >= Q && COUNT(signature, r, 1) >= Q)
#define KEY_REBUILT(r)        (dealt[r] && OF_OTHERS(answer, r, 1) >= T)
#define ANSWERED_FOR(r)       (COUNT(answer, r, 0) > CORRUPT)

inline check() {
    assert(!TWO_QUORUMS(0) && !TWO_QUORUMS(1));
#ifndef NO_ROSTER_PROOF     /* it says the same: here Lemma 3 shall fail without it */
    assert(!(ANSWERED_FOR(0) && !dealt[0]) && !(ANSWERED_FOR(1) && !dealt[1]));
#endif
    assert(!((KEY_REBUILT(0) || KEY_REBUILT(1)) && (ANSWERED_FOR(0) || ANSWERED_FOR(1))))
}

proctype Client(byte me; byte roster) {
    mtype state = Masked;
    byte set = NONE, wanted;

    do
    /* The roster: R7.1-2 and the journal allow one. */
    :: me == 0 && roster == NONE ->
        atomic {
            if :: roster = 0 :: roster = 1 fi;
            home = roster; dealt[roster] = true
        }
#ifdef ACCEPT_AGAIN
    :: me == 0 && roster != NONE -> atomic { dealt[1 - roster] = true; check() }
#endif
    /* U3: the first one is signed, unless it leaves this client out. */
    :: roster != NONE && state == Masked ->
        if :: wanted = 0 :: wanted = 1 fi;
        if
        :: me == 0 && wanted == 1 -> skip           /* U3_INVALID: the client leaves */
        :: else ->
            atomic { state = Signed; set = wanted;
                     signature[2 * me + set] = true; check() }
        fi
    /* The quorum, and what members of U3 that have not signed it have shown. */
    :: state == Signed && COUNT(signature, roster, set) >= Q ->
#ifndef NO_ROSTER_PROOF
        if
        :: set == 0 && !dealt[roster] -> skip       /* U3_INVALID or BAD_SIGNATURE */
        :: else ->
#endif
            atomic { state = Answered; answer[2 * me + set] = true; check() }
#ifndef NO_ROSTER_PROOF
        fi
#endif
    /* The session ends for this client, at any time. */
    :: break
    od
}

init {
    atomic {
        run Client(0, NONE); run Client(1, 0); run Client(2, 0);
        run Client(3, 1); run Client(4, 1)
    }
}
