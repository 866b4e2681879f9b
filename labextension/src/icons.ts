import { LabIcon } from '@jupyterlab/ui-components';

/** One notebook cell, trained on several engines: a dot that fans out to three. */
const SVG = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">
  <g class="jp-icon3" fill="none" stroke="#616161" stroke-width="2">
    <path d="M8 12h7M7.2 10.2 15 6M7.2 13.8 15 18" stroke="#616161" class="jp-icon3-stroke jp-icon-stroke"/>
  </g>
  <g class="jp-icon3" fill="#616161">
    <circle cx="5" cy="12" r="3.2"/>
    <circle cx="18" cy="5" r="2.6"/>
    <circle cx="18" cy="12" r="2.6"/>
    <circle cx="18" cy="19" r="2.6"/>
  </g>
</svg>`;

export const trainingIcon = new LabIcon({
  name: 'jupyter-dtrain:training',
  svgstr: SVG
});
