package counted

import (
	"sync"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// use is a tier's number of files, by this process's knowledge.
type use struct {
	mu    sync.Mutex
	files holding
	when  time.Time     // end of the last full count; zero for never
	took  time.Duration // duration of that count

	// fleeting is the size in bytes of files that were replaced or removed, not yet durably: after a
	// power cut the former file may be there again.
	fleeting int64

	// During a count: the numbers of listed shards, and the shards not listed yet. A change in
	// a shard not listed yet is counted when the shard is listed.
	listing holding
	todo    map[tier.Shard]bool // nil while no count runs
	seen    tier.Shard          // the shard that is being listed while files appear and go
	changed bool                // a file of seen has appeared or gone since

	// While the shards are looked up: changes, for shards that the look-up misses.
	early   []earlyChange
	looking bool
}

// earlyChange is a change while a count looks up its shards.
type earlyChange struct {
	name  pagefile.Name
	files int
	bytes int64
}

type holding struct {
	pages, tails int
	bytes        int64
}

func (h *holding) add(class pagefile.Class, files int, bytes int64) {
	if class == pagefile.ClassTail {
		h.tails += files
	} else {
		h.pages += files
	}
	h.bytes += bytes
}

// commit counts a new file, which may have replaced another. settled is called once the new
// file's name is durable, or after making it durable has failed.
func (u *use) commit(done tier.Committed) {
	files := 1
	if done.Replaced {
		files = 0
	}
	u.change(done.Name, files, done.Physical-done.Freed)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.fleeting += done.Freed
}

func (u *use) settled(done tier.Committed) {
	if done.Bytes == 0 { // commit was not called
		return
	}
	u.durable(done.Freed)
}

// durable notes that files are gone durably, or that making it so has failed.
func (u *use) durable(bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.fleeting -= bytes
}

// remove counts a removed file, whose bytes count until durable is called.
func (u *use) remove(info tier.Info) {
	u.moved(info)
	u.durable(-info.Physical)
}

// moved counts a file that went to quarantine, or was removed in a batch that settles later.
func (u *use) moved(info tier.Info) { u.change(info.Name, -1, -info.Physical) }

func (u *use) change(name pagefile.Name, files int, bytes int64) {
	if name.Class == pagefile.ClassManifest {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.files.add(name.Class, files, bytes)
	if u.looking {
		u.early = append(u.early, earlyChange{name, files, bytes})
	}
	shard := tier.ShardOf(name)
	u.changed = u.changed || shard == u.seen
	if u.todo != nil && !u.todo[shard] {
		u.listing.add(name.Class, files, bytes)
	}
}

// look is called before a shard is listed while files appear and go.
func (u *use) look(shard tier.Shard) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.seen, u.changed = shard, false
}

// same reports whether no file of a shard has appeared or gone since look.
func (u *use) same(shard tier.Shard) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen == shard && !u.changed
}

// prepare is called before a count looks up its shards, and begin after the look-up.
//
// A shard that the look-up misses has only files that appeared since: a file removed from there
// was never in this count, and a removal may be the reason for the miss.
func (u *use) prepare() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.looking = true
}

func (u *use) begin(shards []tier.Shard) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.listing, u.todo = holding{}, make(map[tier.Shard]bool, len(shards))
	for _, shard := range shards {
		u.todo[shard] = true
	}
	there := make(map[pagefile.Name]earlyChange)
	for _, c := range u.early {
		was := there[c.name]
		there[c.name] = earlyChange{c.name, max(0, was.files+c.files), max(0, was.bytes+c.bytes)}
	}
	for name, c := range there {
		if !u.todo[tier.ShardOf(name)] {
			u.listing.add(name.Class, c.files, c.bytes)
		}
	}
	u.early, u.looking = nil, false
}

func (u *use) listed(shard tier.Shard, infos []tier.Info) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.todo, shard)
	for _, info := range infos {
		u.listing.add(info.Class, 1, info.Physical)
	}
}

// end replaces the numbers by the result of the count, stores the count's duration, and
// returns the number of bytes, and the bytes that a power cut may bring back besides.
func (u *use) end(took time.Duration) (bytes, fleeting int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.files, u.todo, u.when, u.took = u.listing, nil, time.Now(), took
	return u.files.bytes, u.fleeting
}

func (u *use) abandon() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.todo, u.early, u.looking = nil, nil, false
}
