package share

import (
	"errors"

	"github.com/kvtier/kvtier/elastic"
)

// The cells of a server, of which the lowest free ones are taken, by blocks that get memory and lose
// it together. It follows kvcache/elastic.go and kvcache/elastic_room.go of the set elastic.

const (
	blockTokens = 256
	tokenBytes  = 16 // so that a block is one granule
	blockBytes  = blockTokens * tokenBytes
)

var (
	errNoRoom   = errors.New("share: no room")
	errRoomSoon = errors.New("share: memory is about to be given back")
)

// A run is cells of one block that a conversation has.
type run struct{ block, cells int }

type memory struct {
	pool      *elastic.Pool
	buffer    *elastic.Buffer
	used      []int // cells in use of each block
	committed []bool
	wasFree   []bool // at the last look
	before    uint64 // the limit that is in force again at the next look; 0: that of now
}

func newMemory(segment string, tokens int, limit uint64) (_ *memory, err error) {
	blocks := (tokens + blockTokens - 1) / blockTokens
	size := uint64(blocks) * blockBytes
	m := &memory{used: make([]int, blocks), committed: make([]bool, blocks), wasFree: make([]bool, blocks)}
	if m.pool, err = elastic.New(size, elastic.Host, elastic.Options{Granule: blockBytes, Limit: limit}); err != nil {
		return nil, err
	}
	if m.buffer, err = m.pool.Alloc(size); err == nil {
		err = m.pool.Attach(segment)
	}
	if err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (m *memory) close() error {
	if m.buffer != nil {
		if err := m.buffer.Free(); err != nil {
			return err
		}
	}
	return m.pool.Close()
}

// take takes cells, and gives them memory.
func (m *memory) take(cells int) (runs []run, err error) {
	for block := 0; block < len(m.used) && cells > 0; block++ {
		n := min(cells, blockTokens-m.used[block])
		if n == 0 {
			continue
		}
		if !m.committed[block] {
			if err := m.commit(block); err != nil {
				return nil, err
			}
		}
		m.committed[block], m.wasFree[block] = true, false
		m.used[block] += n
		cells -= n
		runs = append(runs, run{block, n})
	}
	if cells > 0 {
		return nil, errors.New("share: a server takes more cells than it has")
	}
	return runs, nil
}

// commit gives a block memory in any case: where the limit does not hold it, the limit is raised until
// the next look, and by this block alone.
func (m *memory) commit(block int) error {
	offset := uint64(block) * blockBytes
	err := m.buffer.Commit(offset, blockBytes)
	if !errors.Is(err, elastic.ErrLimit) {
		return err
	}
	s, err := m.pool.Stats()
	if err != nil {
		return err
	}
	if m.before == 0 {
		m.before = s.Limit
	}
	if err := m.pool.Resize(s.Committed + blockBytes); err != nil {
		return err
	}
	return m.buffer.Commit(offset, blockBytes)
}

// free gives cells back. Their memory stays until a look.
func (m *memory) free(runs []run) {
	for _, r := range runs {
		m.used[r.block] -= r.cells
	}
}

// room makes sure that cells can be taken.
func (m *memory) room(cells int) error {
	missing, unused := m.account(cells)
	if missing == 0 {
		return nil
	}
	s, err := m.pool.Stats()
	switch {
	case err != nil:
		return err
	case s.Committed+missing <= s.Limit:
		return nil
	case s.Committed+missing-unused <= s.Limit:
		return errRoomSoon
	default:
		return errNoRoom
	}
}

// account is the memory that taking cells would commit, and that of blocks which are neither in use
// nor needed for them.
func (m *memory) account(cells int) (missing, unused uint64) {
	for block, used := range m.used {
		switch n := min(cells, blockTokens-used); {
		case n > 0:
			cells -= n
			if !m.committed[block] {
				missing += blockBytes
			}
		case m.committed[block] && used == 0:
			unused += blockBytes
		}
	}
	return missing, unused
}

// trim takes memory from the blocks that were free at the last look too, or from all free ones.
func (m *memory) trim(all bool) error {
	for block, used := range m.used {
		if used == 0 && m.committed[block] && (all || m.wasFree[block]) {
			if err := m.buffer.Uncommit(uint64(block)*blockBytes, blockBytes); err != nil {
				return err
			}
			m.committed[block] = false
		}
		m.wasFree[block] = used == 0
	}
	return nil
}

// poll does a round with the segment, which tells others of cells that were promised, of those that
// prompts wait for, and of the blocks that only idle conversations have.
func (m *memory) poll(promised, waiting int, spare uint64) error {
	if m.before != 0 {
		if err := m.pool.Resize(m.before); err != nil && !errors.Is(err, elastic.ErrOver) {
			return err
		}
		m.before = 0
	}
	grows, _ := m.account(promised)
	all, _ := m.account(promised + waiting)
	if err := m.pool.Tell(grows, all-grows, spare); err != nil {
		return err
	}
	if err := m.pool.Poll(); err != nil && !errors.Is(err, elastic.ErrBusy) {
		return err
	}
	return nil
}

// exceeds reports whether more than the limit is committed, if need be beside the memory of free blocks.
func (m *memory) exceeds(besideFree bool) (bool, error) {
	s, err := m.pool.Stats()
	free := uint64(0)
	if besideFree {
		_, free = m.account(0)
	}
	return s.Committed > s.Limit+free, err
}

// held is the memory of the pool.
func (m *memory) held() (int64, error) {
	s, err := m.pool.Stats()
	return int64(s.Committed + s.Prealloc), err
}
