/** Line icons on a 24 by 24 grid. */
import { svg } from './dom.js'

const PATHS = {
  overview: 'M4 19V10M10 19V5M16 19v-7M22 19H2',
  queues: 'M4 6h16M4 12h16M4 18h10',
  dead: 'M12 8v5M12 16.5v.5M10.3 3.9 2.6 17.2A2 2 0 0 0 4.3 20h15.4a2 2 0 0 0 1.7-2.8L13.7 3.9a2 2 0 0 0-3.4 0Z',
  streams: 'M3 8c3-3 6-3 9 0s6 3 9 0M3 15c3-3 6-3 9 0s6 3 9 0',
  workers: 'M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM4 21c0-4 3.6-6 8-6s8 2 8 6',
  pipeline: 'M4 7h6v6H4zM14 11h6v6h-6zM10 10h2a2 2 0 0 1 2 2v2',
  search: 'M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM20 20l-4-4',
  copy: 'M9 9h10v11H9zM5 15V4h10',
  pause: 'M8 5v14M16 5v14',
  play: 'M7 5l12 7-12 7z',
  plus: 'M12 5v14M5 12h14',
  down: 'M12 4v12M6 11l6 6 6-6M5 20h14',
}

/** @param {keyof typeof PATHS} name */
export function icon(name) {
  const frame = { viewBox: '0 0 24 24', fill: 'none', stroke: 'currentColor', 'aria-hidden': 'true' }
  return svg('svg', { ...frame, 'stroke-width': 1.8, 'stroke-linecap': 'round', 'stroke-linejoin': 'round' },
    svg('path', { d: PATHS[name] }))
}
