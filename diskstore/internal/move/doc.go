/*
Package move moves pages between the tiers of a store.

Down is the remote tier as the local one sees it: a page for which the local tier has no room goes
there, exact or lossy. A page leaves the local tier only when the remote tier has a durable copy, every
byte of which this process has written or checked.

Up copies a page that was read from the remote tier to the local one. The remote copy stays, so that
a later move down writes nothing.
*/
package move
