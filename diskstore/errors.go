package diskstore

import "errors"

// ErrOptions reports an Options value that cannot work.
var ErrOptions = errors.New("diskstore: bad options")

// ErrNotPlaced reports a page that ReadPlaced has read and whose rows cannot be
// used where they lie: it is compressed, in the remote tier, or in no file of
// the operating system.
var ErrNotPlaced = errors.New("diskstore: page cannot be used in place")
