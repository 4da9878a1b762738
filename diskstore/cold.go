package diskstore

import (
	"github.com/kvtier/kvtier/diskstore/encoding"
)

/*
A lossy page stands for the exact page with the same key. Options.Cold makes pages lossy when they
move down; the remote tier then has the lossy file instead of an exact copy. A lossy file has
another fingerprint in its name and its header (pagefile.ColdFingerprint), so that a look-up for
exact pages never finds one. Parent and key are those of the exact page: one chain leads over pages
of both kinds.

A lossy page is never made lossy again. It moves up, and down again, as it is.
*/

// ColdTypes are the encodings of pages that move down: encoding.Q8_0, encoding.Q4_0 or
// encoding.Int4 for K and for V. encoding.Raw, the zero value, keeps K or V lossless.
type ColdTypes struct{ K, V encoding.ID }

// on reports whether pages are made lossy.
func (c ColdTypes) on() bool { return c.K.Lossy() || c.V.Lossy() }

func (c ColdTypes) valid() bool {
	return (c.K.Lossy() || c.K == encoding.Raw) && (c.V.Lossy() || c.V == encoding.Raw)
}
