package llamastate

import "sort"

// spots says where attention caches have the tokens of a sequence. Tokens of text have one position each, and
// so do those of most media. Those of an image with columns share its first position; a second position
// tells columns and rows, and the next token's is that of the longer side.
type spots struct {
	runs []run // by their first token, and so by position
	end  int   // the position behind the last token
}

// run is text, or an image with columns.
type run struct {
	first   int // token
	pos     int // of the first token
	columns int // 0: one position for each token
	tokens  int
}

// spotsOf returns the spots of the first tokens of a sequence with some media.
func spotsOf(tokens int, media []Medium) (s spots) {
	at := 0
	add := func(end, columns, positions int) {
		if end > at {
			s.runs = append(s.runs, run{at, s.end, columns, end - at})
		}
		at, s.end = end, s.end+positions
	}
	for i := range media {
		if m := &media[i]; m.Columns > 0 {
			add(m.Start, 0, m.Start-at)
			add(m.End(), m.Columns, max(m.Columns, m.Rows))
		}
	}
	add(tokens, 0, tokens-at)
	return s
}

func (s *spots) of(token int) (pos, x, y int32) {
	r := s.runs[sort.Search(len(s.runs), func(i int) bool { return s.runs[i].first > token })-1]
	n := token - r.first
	if r.columns == 0 {
		pos = int32(r.pos + n)
		return pos, pos, pos
	}
	return int32(r.pos), int32(r.pos + n%r.columns), int32(r.pos + n/r.columns)
}

func (s *spots) token(pos, x, y int32) (token int, ok bool) {
	i := sort.Search(len(s.runs), func(i int) bool { return s.runs[i].pos > int(pos) }) - 1
	if i < 0 || int(pos) >= s.end {
		return 0, false
	}
	r := s.runs[i]
	n := int(pos) - r.pos
	if r.columns > 0 {
		column := int(x) - r.pos
		if n != 0 || column < 0 || column >= r.columns || int(y) < r.pos {
			return 0, false
		}
		n = (int(y)-r.pos)*r.columns + column
	} else if x != pos || y != pos {
		return 0, false
	}
	return r.first + n, n < r.tokens
}
