package account

import (
	"sync"
	"time"
)

// Budget is a number of units of which some are taken. It is safe for concurrent use.
type Budget struct {
	limit int64
	*meter
}

// meter counts what is taken. Budgets of several configurations may share one, so that a
// new configuration counts what requests of an earlier one still hold.
type meter struct {
	mu    sync.Mutex
	taken int64
}

// NewBudget makes a budget of so many units.
func NewBudget(limit int64) *Budget { return &Budget{limit, &meter{}} }

// Limit is how many units there are.
func (b *Budget) Limit() int64 { return b.limit }

// Follow makes b count what is taken of an earlier configuration's budget. It must come
// before b is used.
func (b *Budget) Follow(before *Budget) { b.meter = before.meter }

// Take takes n units, or none and returns false.
func (b *Budget) Take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.limit-b.taken {
		return false
	}
	b.taken += n
	return true
}

// Give gives n units back; fewer than none takes more, whatever is left.
func (m *meter) Give(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken -= n
}

// Held returns the units that are taken.
func (m *meter) Held() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.taken
}

// retryBurst is how many second attempts a tenant may have before earning more.
const retryBurst = 10

// Retries lets a share of a tenant's requests have a second attempt, so that
// retries cannot double the load on workers that are failing.
type Retries struct {
	mu      sync.Mutex
	percent int
	credit  int // hundredths of an attempt
}

// NewRetries makes a budget of so many second attempts per hundred requests.
func NewRetries(percent int) *Retries {
	return &Retries{percent: percent, credit: 100 * retryBurst}
}

// Earn counts a request.
func (b *Retries) Earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.credit = min(b.credit+b.percent, 100*retryBurst)
}

// Spend takes one attempt, if there is one.
func (b *Retries) Spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.credit < 100 {
		return false
	}
	b.credit -= 100
	return true
}

// Bucket is a rate: it fills evenly, holds one minute's worth, and may be overdrawn by
// what was not known when it was taken. A nil bucket has no limit.
type Bucket struct {
	limit int64 // units a minute
	*level
}

// level is how much is in a bucket. Buckets of several configurations may share one.
type level struct {
	mu    sync.Mutex
	used  float64 // units below full
	since time.Time
}

// NewBucket makes a full bucket of so many units a minute; nil if it has no limit.
func NewBucket(limit int64) *Bucket {
	if limit == 0 {
		return nil
	}
	return &Bucket{limit, &level{}}
}

// Follow makes b go on where an earlier configuration's bucket stands.
func (b *Bucket) Follow(before *Bucket) {
	if b != nil && before != nil {
		b.level = before.level
	}
}

// perSecond is how fast the bucket fills.
func (b *Bucket) perSecond() float64 { return float64(b.limit) / 60 }

// flow lets in what came since the last call. The lock is held.
func (b *Bucket) flow(now time.Time) {
	if past := now.Sub(b.since); past > 0 {
		b.used = max(0, b.used-past.Seconds()*b.perSecond())
		b.since = now
	}
}

// Take takes n units. If there are too few it takes none and returns how long to wait. A
// request of more than a minute's worth needs a full bucket, and overdraws it.
func (b *Bucket) Take(n int64, now time.Time) (wait time.Duration, ok bool) {
	if b == nil {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flow(now)
	need := float64(min(n, b.limit))
	if short := b.used + need - float64(b.limit); short > 0 {
		return time.Duration(short / b.perSecond() * float64(time.Second)), false
	}
	b.used += float64(n)
	return 0, true
}

// Settle corrects what was taken by the difference to what was used, either way.
func (b *Bucket) Settle(more int64, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flow(now)
	b.used = max(0, b.used+float64(more))
}
