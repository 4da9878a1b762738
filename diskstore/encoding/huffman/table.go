package huffman

// entry is the result of a look-up. Its bits, from the lowest:
//
//	0–5    the bits of all its codes
//	6–29   up to three bytes of the plane
//	30–31  their number
type entry uint32

const (
	bitsMask    = 1<<6 - 1
	symbolShift = 6
	countShift  = 30
	countMost   = 3
)

// table has an entry for each value of the next bits of a stream.
type table [1 << lookupBits]entry

// with returns an entry with one more symbol.
func (e entry) with(symbol byte, length uint8) entry {
	count := e >> countShift
	return e + 1<<countShift + entry(symbol)<<(symbolShift+8*count) + entry(length)
}

// fill sets the whole table.
func (t *table) fill(codes *tree) {
	codes.measure()
	codes.fill(t[:], lookupBits, 0)
}

// fill sets the part of a table behind the codes of e: its entries are for the values of the bits that
// are left. measure comes first.
func (t *tree) fill(part []entry, left uint8, e entry) {
	fits := t.fits[left]
	set(part[:fits.from], e)
	part = part[fits.from:]
	for i := fits.first; i < t.n; i++ {
		length := t.lengths[i]
		n := 1 << (left - length)
		next := e.with(t.symbols[i], length)
		if n < 2 || next>>countShift == countMost {
			set(part[:n], next)
		} else {
			t.fill(part[:n], left-length, next)
		}
		part = part[n:]
	}
}

func set(part []entry, e entry) {
	for i := range part {
		part[i] = e
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
