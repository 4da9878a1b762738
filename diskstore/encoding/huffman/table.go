package huffman

// entry is the result of a look-up. Its lowest byte is the number of bits that its codes take, the next
// byte the number of its symbols. Up to four symbols follow, which are bytes of the plane.
type entry uint64

const (
	countShift  = 8
	symbolShift = 16
	symbolsMost = 4
)

func (e entry) first() byte { return byte(e >> symbolShift) }

// table has an entry for each value of the next lookupBits bits of a stream.
type table [1 << lookupBits]entry

// tables has the look-up table, and the smaller tables that it is built from.
type tables struct {
	all table
	// rest[k-1] has a table for each number n of bits, from index 1<<n to 2<<n. Its entries have the
	// symbols of the next n bits, at most k, in the last k places for symbols. So the sum of such an
	// entry and of one with the symbols before it is a whole entry.
	rest [symbolsMost - 1][1 << lookupBits]entry
}

// fill builds the tables of a tree's codes, those of few symbols first.
func (t *tables) fill(codes *tree) {
	codes.measure()
	least := int(codes.lengths[codes.n-1])
	for k := 1; k < symbolsMost; k++ {
		for n := 0; n <= lookupBits-(symbolsMost-k)*least; n++ {
			t.part(codes, t.bits(k, n), k, n)
		}
	}
	t.part(codes, t.all[:], symbolsMost, lookupBits)
}

// bits returns the table for n bits and at most k symbols.
func (t *tables) bits(k, n int) []entry { return t.rest[k-1][1<<n : 2<<n] }

// part fills the table for n bits and at most k symbols. Each code of at most n bits has a range of
// entries: the code's symbol, and behind it the table for the bits left and k-1 symbols.
func (t *tables) part(codes *tree, part []entry, k, n int) {
	fits := codes.fits[n]
	clear(part[:fits.from])
	part = part[fits.from:]
	for i := fits.first; i < codes.n; i++ {
		length := codes.lengths[i]
		e := entry(length) + 1<<countShift + entry(codes.symbols[i])<<(symbolShift+8*(symbolsMost-k))
		left := n - int(length)
		own := part[:1<<left]
		if k == 1 {
			for j := range own {
				own[j] = e
			}
		} else {
			rest := t.bits(k-1, left)[:len(own)]
			for j := range own {
				own[j] = rest[j] + e
			}
		}
		part = part[1<<left:]
	}
}

// fit says which codes have at most n bits: those from the index first on, since the longest codes
// come first. The values of n bits that begin with such a code are those from the value from on.
type fit struct{ first, from int }

func (t *tree) measure() {
	i, used := 0, 0 // used counts the entries of longer codes
	for left := lookupBits; left >= 0; left-- {
		for i < t.n && int(t.lengths[i]) > left {
			used += 1 << (lookupBits - t.lengths[i])
			i++
		}
		t.fits[left] = fit{i, used >> (lookupBits - left)}
	}
}
