package huffman

// entry is the result of a look-up. Its bytes, from the lowest: the bits of all its codes, the number of
// its symbols, and up to four symbols, which are bytes of the plane.
type entry uint64

const (
	countShift  = 8
	symbolShift = 16
	symbolsMost = 4
)

// first is the first symbol.
func (e entry) first() byte { return byte(e >> symbolShift) }

// table is the entries of the next bits of a stream, by their value.
type table [1 << lookupBits]entry

// tables has the look-up table of all bits, and tables of fewer bits, from which it is put together.
type tables struct {
	all table
	// rest[k-1] are entries of up to k symbols, those behind the first symbolsMost-k of an entry of all,
	// with places for these. The ones of n bits begin at index 1<<n.
	rest [symbolsMost - 1][1 << lookupBits]entry
}

// fill makes the table of a tree's codes.
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

// bits are the entries of n bits and up to k symbols.
func (t *tables) bits(k, n int) []entry { return t.rest[k-1][1<<n : 2<<n] }

// part makes the entries of n bits and up to k symbols: each code that fits takes a range of them, and
// its range is the entries of the bits that it leaves, of a symbol fewer.
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

// fit tells which codes fit in a number of bits: those from an index on. They take the values of the
// bits from a value on, since codes are in the order of the table, the longest first.
type fit struct{ first, from int }

// measure finds the fits.
func (t *tree) measure() {
	i, used := 0, 0 // used are the entries of the codes that do not fit
	for left := lookupBits; left >= 0; left-- {
		for i < t.n && int(t.lengths[i]) > left {
			used += 1 << (lookupBits - t.lengths[i])
			i++
		}
		t.fits[left] = fit{i, used >> (lookupBits - left)}
	}
}
