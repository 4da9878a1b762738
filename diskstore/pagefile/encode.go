package pagefile

// Encoded is a page file ready for writing: header, then body in order, each piece followed by
// zeros up to the next multiple of PageAlign, then footer.
type Encoded struct {
	Header *Header
	head   []byte
	body   [][]byte
	foot   []byte
}

// Encode computes the file of p, whose gaps must be clear. The body of a raw page is the
// payload itself. Compressed sections take new memory, together at most the payload's size. A
// nil c stores every section raw.
func Encode(fingerprint Key, pageTokens int, p *Page, c *Codec) (*Encoded, error) {
	h := &Header{
		Fingerprint: fingerprint,
		Key:         p.Key(),
		Parent:      p.Parent,
		Start:       p.Start,
		PageTokens:  pageTokens,
		Tokens:      p.Tokens,
		Media:       p.Media,
		Sections:    make([]StoredSection, len(p.Layout.sections)),
		Layout:      p.Layout,
	}
	stored := make([][]byte, len(h.Sections))
	err := eachSection(len(h.Sections), func(i int) error {
		rows := p.Layout.Rows(p.Payload, i)
		s := &h.Sections[i]
		*s = StoredSection{Section: p.Layout.sections[i], Raw: int64(len(rows))}
		stored[i] = rows
		if c != nil {
			if e, small := c.Encode(rows, s.Section); e != EncodingRaw {
				s.Encoding, stored[i] = e, small
			}
		}
		s.Stored, s.CRC = int64(len(stored[i])), Checksum(stored[i])
		return nil
	})
	if err != nil {
		return nil, err
	}
	h.Place()
	e := &Encoded{Header: h, head: h.Encode(), body: stored}
	if h.Raw() {
		e.body = [][]byte{p.Payload}
	}
	e.foot = h.footer()
	return e, nil
}

// zeros is the longest gap after a section.
var zeros [PageAlign]byte

// WriteTo passes the file's pieces to write, in order.
func (e *Encoded) WriteTo(write func(p []byte) error) error {
	if err := write(e.head); err != nil {
		return err
	}
	for _, piece := range e.body {
		if err := write(piece); err != nil {
			return err
		}
		if gap := AlignUp(int64(len(piece))) - int64(len(piece)); gap > 0 {
			if err := write(zeros[:gap]); err != nil {
				return err
			}
		}
	}
	return write(e.foot)
}
