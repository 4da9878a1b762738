/*
Package move moves pages between the tiers of a store.

To the local tier, a Mover is the remote one: a page for which the local tier has no room goes down
there, exact or lossy. A page leaves the local tier only when the remote tier has a durable copy, every
byte of which this process has written or checked.

Through copies pages down as soon as they are stored, and leaves them in the local tier, too. A move down
then finds the copy.

A page that was read from the remote tier is copied up to the local one. The remote copy stays, so that
a later move down writes nothing.
*/
package move
