package pagefile

import "errors"

// ErrDamaged reports a page whose bytes are not the bytes that were written. The file has been
// moved to quarantine.
var ErrDamaged = errors.New("diskstore: page is damaged")

// ErrMismatch reports a well-formed page other than the requested one: another fingerprint,
// parent, position, tokens or sections.
var ErrMismatch = errors.New("diskstore: page is not the one asked for")

// ErrInvalidPage reports arguments that cannot describe a page.
var ErrInvalidPage = errors.New("diskstore: invalid page")
