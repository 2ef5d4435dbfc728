; The hand-off as an inductive invariant, for any number of pages, generations, writes
; and keys. It is written from the rules (docs/design/rules.md), not from the Go code.
;
; A state is a set of relations; s is before a step, s1 after it. Each t-NAME is one
; step, each inv-NAME one clause of the invariant (post-NAME is the same one after the
; step). Guards are constants: the check asserts all of them, or all but one. spec_test.go
; reads the names, builds the obligations and runs the solvers:
;
;   init          the first state satisfies every clause
;   step          every step keeps every clause
;   safe          the clauses imply what we want
;   possible      every step can happen in a state that the clauses allow
;   drop-one      without a guard, the clause that it is there for is lost
;
; What is abstract: content is "whose computed rows"; digests do not collide; a MAC is
; not forged; a fence takes no time. What is not here: liveness, the acknowledgements of
; aborts and everything else that only availability needs (guards stop, quiet, tombstone,
; retry, fence, connection), which internal/world explores.
(set-logic ALL)
(declare-sort Page 0)  ; a page of decode's pool
(declare-sort Gen 0)   ; a reservation: attempt and generation
(declare-sort Write 0) ; one page write that prefill posted
(declare-sort Key 0)
(declare-sort Room 0)
(declare-sort Domain 0)

(declare-fun gen (Write) Gen)     ; the grant that a write was posted for
(declare-fun page (Write) Page)   ; where it is to land
(declare-fun key (Gen) Key)       ; the write key of a reservation
(declare-fun room (Gen) Room)     ; where the legs met
(declare-fun domain (Gen) Domain)
(declare-fun other-door (Gen) Bool)  ; prefill's door saw another request than decode's
(declare-fun other-input (Gen) Bool) ; prefill's engine was given other tokens than decode was sent
(declare-fun covered (Page Gen) Bool) ; the notice names the page
(assert (forall ((g Gen)) (=> (other-door g) (other-input g))))

(declare-const g-offer Bool)
(declare-const g-extent Bool)
(declare-const g-input Bool)
(declare-const g-seal Bool)
(declare-const g-digest Bool)
(declare-const g-key Bool)
(declare-const g-generation Bool)
(declare-const g-epoch Bool)
(declare-const g-completion Bool)
(declare-const g-source-hold Bool)
(declare-const g-domain Bool)
(declare-const g-header Bool)

; H-6: a reservation has a key of its own.
(assert (=> g-key (forall ((g Gen) (h Gen)) (=> (= (key g) (key h)) (= g h)))))

; The state.
(declare-fun used (Gen) Bool)         ; the generation was given out, in this life or before
(declare-fun used1 (Gen) Bool)
(declare-fun offered (Gen) Bool)      ; prefill offered, and decode took it
(declare-fun offered1 (Gen) Bool)
(declare-fun owns (Page Gen) Bool)
(declare-fun owns1 (Page Gen) Bool)
(declare-fun opened (Page Gen) Bool)  ; the landing table lets that reservation's key write the page
(declare-fun opened1 (Page Gen) Bool)
(declare-fun flight (Write) Bool)     ; its bytes may still land, again and again
(declare-fun flight1 (Write) Bool)
(declare-fun carries (Write Gen) Bool) ; the content that lands is what was computed for that generation
(declare-fun carries1 (Write Gen) Bool)
(declare-fun has (Page Gen) Bool)     ; the page holds what was computed for that generation
(declare-fun has1 (Page Gen) Bool)
(declare-fun noticed (Gen) Bool)
(declare-fun noticed1 (Gen) Bool)
(declare-fun sealed (Gen) Bool)
(declare-fun sealed1 (Gen) Bool)
(declare-fun verified (Gen) Bool)
(declare-fun verified1 (Gen) Bool)
(declare-fun reads (Gen) Bool)        ; the engine reads its pages
(declare-fun reads1 (Gen) Bool)
(declare-fun answered (Gen) Bool)     ; a header of its answer left
(declare-fun answered1 (Gen) Bool)
(declare-fun cached (Page Domain) Bool)
(declare-fun cached1 (Page Domain) Bool)
(declare-fun borrows (Page Gen) Bool) ; it reads a cached page
(declare-fun borrows1 (Page Gen) Bool)
(declare-const strayed Bool)          ; ever: a write landed in a page that is not its generation's
(declare-const strayed1 Bool)

; The steps. Each has one generation, write or page that it is about.
(declare-const G Gen)
(declare-const H Gen)
(declare-const W Write)
(declare-const P Page)
(declare-fun S (Page) Bool) ; the pages of a reservation

; What a step leaves alone.
(define-fun same-used () Bool (forall ((g Gen)) (= (used1 g) (used g))))
(define-fun same-offered () Bool (forall ((g Gen)) (= (offered1 g) (offered g))))
(define-fun same-owns () Bool (forall ((p Page) (g Gen)) (= (owns1 p g) (owns p g))))
(define-fun same-opened () Bool (forall ((p Page) (g Gen)) (= (opened1 p g) (opened p g))))
(define-fun same-flight () Bool (forall ((w Write)) (= (flight1 w) (flight w))))
(define-fun same-carries () Bool (forall ((w Write) (g Gen)) (= (carries1 w g) (carries w g))))
(define-fun same-has () Bool (forall ((p Page) (g Gen)) (= (has1 p g) (has p g))))
(define-fun same-noticed () Bool (forall ((g Gen)) (= (noticed1 g) (noticed g))))
(define-fun same-sealed () Bool (forall ((g Gen)) (= (sealed1 g) (sealed g))))
(define-fun same-verified () Bool (forall ((g Gen)) (= (verified1 g) (verified g))))
(define-fun same-reads () Bool (forall ((g Gen)) (= (reads1 g) (reads g))))
(define-fun same-answered () Bool (forall ((g Gen)) (= (answered1 g) (answered g))))
(define-fun same-cache () Bool (and (forall ((p Page) (d Domain)) (= (cached1 p d) (cached p d)))
                                    (forall ((p Page) (g Gen)) (= (borrows1 p g) (borrows p g)))))
(define-fun same-strayed () Bool (= strayed1 strayed))

; H-1: decode takes an offer that equals its own view.
(define-fun t-offer () Bool (and
  (=> g-offer (not (other-door G)))
  (forall ((g Gen)) (= (offered1 g) (or (offered g) (= g G))))
  same-used same-owns same-opened same-flight same-carries same-has same-noticed same-sealed same-verified same-reads same-answered same-cache same-strayed))

; H-3, H-4: free pages, a generation that was never used.
(define-fun t-reserve () Bool (and
  (not (used G))
  (=> g-offer (offered G))
  (forall ((p Page) (g Gen)) (=> (S p) (and (not (owns p g)) (not (borrows p g)))))
  (forall ((p Page) (d Domain)) (=> (S p) (not (cached p d))))
  (forall ((g Gen)) (= (used1 g) (or (used g) (= g G))))
  (forall ((p Page) (g Gen)) (= (owns1 p g) (or (owns p g) (and (S p) (= g G)))))
  (forall ((p Page) (g Gen)) (= (opened1 p g) (or (opened p g) (and (S p) (= g G)))))
  same-offered same-flight same-carries same-has same-noticed same-sealed same-verified same-reads same-answered same-cache same-strayed))

; Prefill posts a write under a grant, before its notice. Nothing else binds it: it may
; post after an abort, or for a reservation that is gone.
(define-fun t-post () Bool (and
  (used (gen W)) (not (noticed (gen W)))
  (forall ((w Write)) (= (flight1 w) (or (flight w) (= w W))))
  (forall ((w Write) (g Gen)) (= (carries1 w g) (ite (= w W) (= g (gen W)) (carries w g))))
  same-used same-offered same-owns same-opened same-has same-noticed same-sealed same-verified same-reads same-answered same-cache same-strayed))

; H-8 forbids it: the source page is used again while the write is under way.
(define-fun t-reuse-source () Bool (and
  (not g-source-hold)
  (flight W)
  (forall ((w Write) (g Gen)) (= (carries1 w g) (ite (= w W) (= g H) (carries w g))))
  same-used same-offered same-owns same-opened same-flight same-has same-noticed same-sealed same-verified same-reads same-answered same-cache same-strayed))

; H-6: a write lands where a key like its own is open. It may land again.
(define-fun t-land () Bool (and
  (flight W) (opened (page W) G) (= (key G) (key (gen W)))
  (forall ((p Page) (g Gen)) (= (has1 p g) (ite (= p (page W)) (carries W g) (has p g))))
  (= strayed1 (or strayed (not (owns (page W) (gen W)))))
  same-used same-offered same-owns same-opened same-flight same-carries same-noticed same-sealed same-verified same-reads same-answered same-cache))

(define-fun t-complete () Bool (and
  (flight W)
  (forall ((w Write)) (= (flight1 w) (and (flight w) (distinct w W))))
  same-used same-offered same-owns same-opened same-carries same-has same-noticed same-sealed same-verified same-reads same-answered same-cache same-strayed))

; H-7: the notice leaves after every write has completed; H-2: it acts on its own
; generation, not on whatever is in the same room.
(define-fun t-notice () Bool (and
  (used G) (used H)
  (=> g-completion (forall ((w Write)) (=> (= (gen w) G) (not (flight w)))))
  (ite g-generation (= H G) (= (room H) (room G)))
  (forall ((g Gen)) (= (noticed1 g) (or (noticed g) (= g H))))
  same-used same-offered same-owns same-opened same-flight same-carries same-has same-sealed same-verified same-reads same-answered same-cache same-strayed))

; H-5: the write key is taken away.
(define-fun t-seal () Bool (and
  (noticed G)
  (forall ((g Gen)) (= (sealed1 g) (or (sealed g) (= g G))))
  (forall ((p Page) (g Gen)) (= (opened1 p g) (and (opened p g) (distinct g G))))
  same-used same-offered same-owns same-flight same-carries same-has same-noticed same-verified same-reads same-answered same-cache same-strayed))

; H-3, H-5, H-7: after the seal, all reserved pages hold what was computed, for this input.
(define-fun t-verify () Bool (and
  (noticed G)
  (=> g-seal (sealed G))
  (=> g-input (not (other-input G)))
  (=> g-digest (forall ((p Page)) (=> (and (owns p G) (or g-extent (covered p G))) (has p G))))
  (forall ((g Gen)) (= (verified1 g) (or (verified g) (= g G))))
  same-used same-offered same-owns same-opened same-flight same-carries same-has same-noticed same-sealed same-reads same-answered same-cache same-strayed))

(define-fun t-read () Bool (and
  (verified G)
  (forall ((g Gen)) (= (reads1 g) (or (reads g) (= g G))))
  same-used same-offered same-owns same-opened same-flight same-carries same-has same-noticed same-sealed same-verified same-answered same-cache same-strayed))

; H-14: no header leaves before the proof.
(define-fun t-answer () Bool (and
  (used G)
  (=> g-header (verified G))
  (forall ((g Gen)) (= (answered1 g) (or (answered g) (= g G))))
  same-used same-offered same-owns same-opened same-flight same-carries same-has same-noticed same-sealed same-verified same-reads same-cache same-strayed))

; H-9: at any time, with no word from prefill: the key is taken away, then the pages are free.
(define-fun t-free () Bool (and
  (forall ((p Page) (g Gen)) (= (owns1 p g) (and (owns p g) (distinct g G))))
  (forall ((p Page) (g Gen)) (= (opened1 p g) (and (opened p g) (or (distinct g G) (not g-key)))))
  (forall ((g Gen)) (= (reads1 g) (and (reads g) (distinct g G))))
  (forall ((p Page) (g Gen)) (= (borrows1 p g) (and (borrows p g) (distinct g G))))
  (forall ((p Page) (d Domain)) (= (cached1 p d) (cached p d)))
  same-used same-offered same-flight same-carries same-has same-noticed same-sealed same-verified same-answered same-strayed))

; H-12: a verified page goes into the cache of its domain, and from there to others of it.
(define-fun t-publish () Bool (and
  (reads G) (owns P G) (verified G)
  (forall ((p Page) (g Gen)) (= (owns1 p g) (and (owns p g) (distinct p P))))
  (forall ((p Page) (g Gen)) (= (opened1 p g) (and (opened p g) (distinct p P))))
  (forall ((p Page) (d Domain)) (= (cached1 p d) (or (cached p d) (and (= p P) (= d (domain G))))))
  (forall ((p Page) (g Gen)) (= (borrows1 p g) (or (borrows p g) (and (= p P) (= g G)))))
  same-used same-offered same-flight same-carries same-has same-noticed same-sealed same-verified same-reads same-answered same-strayed))

(define-fun t-borrow () Bool (and
  (exists ((d Domain)) (and (cached P d) (=> g-domain (= d (domain G)))))
  (forall ((p Page) (g Gen)) (= (borrows1 p g) (or (borrows p g) (and (= p P) (= g G)))))
  (forall ((p Page) (d Domain)) (= (cached1 p d) (cached p d)))
  same-used same-offered same-owns same-opened same-flight same-carries same-has same-noticed same-sealed same-verified same-reads same-answered same-strayed))

(define-fun t-evict () Bool (and
  (forall ((g Gen)) (not (borrows P g)))
  (forall ((p Page) (d Domain)) (= (cached1 p d) (and (cached p d) (distinct p P))))
  (forall ((p Page) (g Gen)) (= (borrows1 p g) (borrows p g)))
  same-used same-offered same-owns same-opened same-flight same-carries same-has same-noticed same-sealed same-verified same-reads same-answered same-strayed))

; H-2: decode starts anew. Memory and what is in flight survive; generations of an
; earlier life are never given out again.
(define-fun t-restart () Bool (and
  (forall ((p Page) (g Gen)) (and (not (owns1 p g)) (not (opened1 p g)) (not (borrows1 p g))))
  (forall ((p Page) (d Domain)) (not (cached1 p d)))
  (forall ((g Gen)) (not (reads1 g)))
  (forall ((g Gen)) (= (used1 g) (and (used g) g-epoch)))
  same-offered same-flight same-carries same-has same-noticed same-sealed same-verified same-answered same-strayed))

; The invariant.
(define-fun inv-one-owner () Bool (forall ((p Page) (g Gen) (h Gen)) (=> (and (owns p g) (owns p h)) (= g h))))
(define-fun post-one-owner () Bool (forall ((p Page) (g Gen) (h Gen)) (=> (and (owns1 p g) (owns1 p h)) (= g h))))
(define-fun inv-one-content () Bool (forall ((p Page) (g Gen) (h Gen)) (=> (and (has p g) (has p h)) (= g h))))
(define-fun post-one-content () Bool (forall ((p Page) (g Gen) (h Gen)) (=> (and (has1 p g) (has1 p h)) (= g h))))
; H-1: whoever has pages was offered them, and both doors saw the same request.
(define-fun inv-admitted () Bool (forall ((p Page) (g Gen)) (=> (owns p g) (and (offered g) (not (other-door g))))))
(define-fun post-admitted () Bool (forall ((p Page) (g Gen)) (=> (owns1 p g) (and (offered1 g) (not (other-door g))))))
(define-fun inv-offers-equal () Bool (forall ((g Gen)) (=> (offered g) (not (other-door g)))))
(define-fun post-offers-equal () Bool (forall ((g Gen)) (=> (offered1 g) (not (other-door g)))))
; H-9: what is open is owned, and not sealed.
(define-fun inv-open-is-owned () Bool (forall ((p Page) (g Gen)) (=> (opened p g) (and (owns p g) (not (sealed g))))))
(define-fun post-open-is-owned () Bool (forall ((p Page) (g Gen)) (=> (opened1 p g) (and (owns1 p g) (not (sealed1 g))))))
; V2: no write ever landed in a page of another generation.
(define-fun inv-no-stray () Bool (not strayed))
(define-fun post-no-stray () Bool (not strayed1))
; V3: what is under way is what was computed for its own generation, and nothing else.
(define-fun inv-source () Bool (forall ((w Write) (g Gen)) (=> (and (flight w) (carries w g)) (= g (gen w)))))
(define-fun post-source () Bool (forall ((w Write) (g Gen)) (=> (and (flight1 w) (carries1 w g)) (= g (gen w)))))
; H-7: behind a notice nothing is under way.
(define-fun inv-complete () Bool (forall ((w Write)) (=> (noticed (gen w)) (not (flight w)))))
(define-fun post-complete () Bool (forall ((w Write)) (=> (noticed1 (gen w)) (not (flight1 w)))))
; H-2: a generation that anything speaks of was given out, and will not be again.
(define-fun inv-known () Bool (and
  (forall ((p Page) (g Gen)) (=> (or (owns p g) (opened p g)) (used g)))
  (forall ((w Write)) (=> (flight w) (used (gen w))))
  (forall ((g Gen)) (=> (or (noticed g) (sealed g) (verified g) (reads g) (answered g)) (used g)))))
(define-fun post-known () Bool (and
  (forall ((p Page) (g Gen)) (=> (or (owns1 p g) (opened1 p g)) (used1 g)))
  (forall ((w Write)) (=> (flight1 w) (used1 (gen w))))
  (forall ((g Gen)) (=> (or (noticed1 g) (sealed1 g) (verified1 g) (reads1 g) (answered1 g)) (used1 g)))))
; H-5: the order: seal, verify, read.
(define-fun inv-sealed-first () Bool (forall ((g Gen)) (=> (verified g) (sealed g))))
(define-fun post-sealed-first () Bool (forall ((g Gen)) (=> (verified1 g) (sealed1 g))))
(define-fun inv-verified-first () Bool (forall ((g Gen)) (=> (reads g) (verified g))))
(define-fun post-verified-first () Bool (forall ((g Gen)) (=> (reads1 g) (verified1 g))))
; H-7: what was verified holds what was computed for it, and goes on holding it.
(define-fun inv-proved () Bool (forall ((p Page) (g Gen)) (=> (and (verified g) (owns p g)) (has p g))))
(define-fun post-proved () Bool (forall ((p Page) (g Gen)) (=> (and (verified1 g) (owns1 p g)) (has1 p g))))
; H-3: and it was computed for the prompt that decode was sent.
(define-fun inv-input () Bool (forall ((g Gen)) (=> (verified g) (not (other-input g)))))
(define-fun post-input () Bool (forall ((g Gen)) (=> (verified1 g) (not (other-input g)))))
; H-14.
(define-fun inv-header () Bool (forall ((g Gen)) (=> (answered g) (verified g))))
(define-fun post-header () Bool (forall ((g Gen)) (=> (answered1 g) (verified1 g))))
; H-12, V10: a page is read in its own domain only; a cached page is nobody's to write.
(define-fun inv-domain () Bool (forall ((p Page) (g Gen)) (=> (borrows p g) (cached p (domain g)))))
(define-fun post-domain () Bool (forall ((p Page) (g Gen)) (=> (borrows1 p g) (cached1 p (domain g)))))
(define-fun inv-cached-is-closed () Bool (forall ((p Page) (d Domain) (g Gen)) (=> (cached p d) (and (not (owns p g)) (not (opened p g))))))
(define-fun post-cached-is-closed () Bool (forall ((p Page) (d Domain) (g Gen)) (=> (cached1 p d) (and (not (owns1 p g)) (not (opened1 p g))))))

; The first state.
(define-fun init () Bool (and
  (forall ((g Gen)) (and (not (used g)) (not (offered g)) (not (noticed g)) (not (sealed g)) (not (verified g)) (not (reads g)) (not (answered g))))
  (forall ((p Page) (g Gen)) (and (not (owns p g)) (not (opened p g)) (not (has p g)) (not (borrows p g))))
  (forall ((p Page) (d Domain)) (not (cached p d)))
  (forall ((w Write)) (not (flight w)))
  (not strayed)))

; V1, V9, V10: what the engine reads is its own, of its own prompt, in its own domain; and
; nobody was answered without it.
(define-fun safe () Bool (and
  (forall ((p Page) (g Gen)) (=> (and (reads g) (owns p g)) (has p g)))
  (forall ((g Gen)) (=> (or (reads g) (answered g)) (not (other-input g))))
  (forall ((p Page) (g Gen)) (=> (borrows p g) (cached p (domain g))))
  (not strayed)))
