package pagefile

import "slices"

// MediaWithin returns the media of the n tokens from position start on, ordered, with offsets
// counted from start.
func MediaWithin(media []Media, start, n int) []Media {
	var in []Media
	for _, m := range media {
		if off := int64(m.Offset) - int64(start); off >= 0 && off < int64(n) {
			in = append(in, Media{Offset: uint32(off), Hash: m.Hash})
		}
	}
	slices.SortStableFunc(in, func(a, b Media) int { return int(int64(a.Offset) - int64(b.Offset)) })
	return in
}

// Shared returns the number of equal leading tokens.
func Shared(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// CommonPrefix returns the number of leading tokens of a and b that are equal and have equal
// media beginning at them.
func CommonPrefix(a []int32, aMedia []Media, b []int32, bMedia []Media) int {
	n := Shared(a, b)
	// The first media item that differs ends the prefix at the item's offset.
	for i := range max(len(aMedia), len(bMedia)) {
		switch {
		case i >= len(aMedia):
			return min(n, int(bMedia[i].Offset))
		case i >= len(bMedia):
			return min(n, int(aMedia[i].Offset))
		case aMedia[i] != bMedia[i]:
			return min(n, int(aMedia[i].Offset), int(bMedia[i].Offset))
		}
	}
	return n
}
